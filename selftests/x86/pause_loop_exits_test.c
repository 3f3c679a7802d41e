// SPDX-License-Identifier: GPL-2.0-only
/*
 * Test the vCPU stat pause_loop_exits: the PAUSE exits that KVM handled.
 *
 * vCPU 0 holds a lock until each of the others waited for it for SPINS rounds.
 * The others outnumber the CPUs, so they wait for a holder and for one another
 * while those are preempted.
 */
#include "kvm_test_harness.h"
#include "overcommit.h"
#include "test_util.h"

/*
 * Rounds of PAUSE that any filter sees as a loop: twice the 3000 after which SVM
 * exits by default, and more than VMX's 4096 cycles.
 */
#define SPINS	6000

static struct guest_lock lock;
static bool guest_pauses;
static u32 nr_acquired;

static void guest_code(u32 vcpu)
{
	if (vcpu) {
		guest_lock_acquire(&lock, vcpu, guest_pauses);
	} else {
		/* The host gave the lock to vCPU 0, see contend(). */
		guest_lock_hold_until_spun(&lock, vcpu, SPINS);
	}
	nr_acquired++;
	guest_lock_release(&lock);
}

static struct overcommit *contend(int nr_pcpus, bool pauses, u64 disable_exits)
{
	struct overcommit *oc;

	oc = overcommit_create(2 * nr_pcpus + 1, disable_exits, guest_code);

	lock = (struct guest_lock) { .next = 1, .owner = 0 };
	guest_pauses = pauses;
	nr_acquired = 0;
	sync_global_to_guest(oc->vm, lock);
	sync_global_to_guest(oc->vm, guest_pauses);
	sync_global_to_guest(oc->vm, nr_acquired);

	overcommit_run(oc, nr_pcpus);

	sync_global_from_guest(oc->vm, nr_acquired);
	TEST_ASSERT_EQ(nr_acquired, oc->nr_vcpus);
	return oc;
}

FIXTURE(pause_loop_exits)
{
	struct overcommit *oc;
};

FIXTURE_VARIANT(pause_loop_exits)
{
	int nr_pcpus;
};

FIXTURE_VARIANT_ADD(pause_loop_exits, one_cpu)
{
	.nr_pcpus = 1,
};

FIXTURE_VARIANT_ADD(pause_loop_exits, two_cpus)
{
	.nr_pcpus = 2,
};

FIXTURE_SETUP(pause_loop_exits)
{
	if (!kvm_has_pause_exits())
		SKIP(return, "No exits on PAUSE: not supported, or disabled by module parameter");
	if (overcommit_max_pcpus() < variant->nr_pcpus)
		SKIP(return, "Needs %d CPUs", variant->nr_pcpus);
}

FIXTURE_TEARDOWN(pause_loop_exits)
{
	if (self->oc)
		overcommit_free(self->oc);
}

/* A waiter has exits, at most one for each PAUSE; the holder has none. */
TEST_F_TIMEOUT(pause_loop_exits, spinners_are_counted, 120)
{
	u64 exits, spins;
	int i;

	self->oc = contend(variant->nr_pcpus, true, 0);

	ASSERT_EQ(vcpu_get_stat(self->oc->vcpus[0], pause_loop_exits), 0);
	for (i = 1; i < self->oc->nr_vcpus; i++) {
		exits = vcpu_get_stat(self->oc->vcpus[i], pause_loop_exits);
		spins = overcommit_guest_spins(self->oc, i);
		TH_LOG("vCPU %d: %lu exits in %lu spins", i, exits, spins);
		ASSERT_GE(spins, SPINS);
		ASSERT_GT(exits, 0);
		ASSERT_LE(exits, spins);
	}
}

TEST_F_TIMEOUT(pause_loop_exits, no_pause_no_exits, 120)
{
	int i;

	self->oc = contend(variant->nr_pcpus, false, 0);

	for (i = 0; i < self->oc->nr_vcpus; i++)
		ASSERT_EQ(vcpu_get_stat(self->oc->vcpus[i], pause_loop_exits), 0);
}

TEST_F_TIMEOUT(pause_loop_exits, disabled_exits, 120)
{
	int i;

	if (!(kvm_check_cap(KVM_CAP_X86_DISABLE_EXITS) & KVM_X86_DISABLE_EXITS_PAUSE))
		SKIP(return, "KVM does not let userspace disable exits on PAUSE");

	self->oc = contend(variant->nr_pcpus, true, KVM_X86_DISABLE_EXITS_PAUSE);

	for (i = 0; i < self->oc->nr_vcpus; i++)
		ASSERT_EQ(vcpu_get_stat(self->oc->vcpus[i], pause_loop_exits), 0);
}

/* The VM's file in debugfs is the sum of its vCPUs. */
TEST_F_TIMEOUT(pause_loop_exits, debugfs_agrees, 120)
{
	u64 sum = 0, debugfs;
	int i;

	self->oc = contend(variant->nr_pcpus, true, 0);
	/* Any stat will do; KVM names the directory after the global PID. */
	if (!vm_read_debugfs_stat(self->oc->vm, "exits", &debugfs))
		SKIP(return, "No debugfs directory of this VM: not mounted, or in a PID namespace");

	for (i = 0; i < self->oc->nr_vcpus; i++)
		sum += vcpu_get_stat(self->oc->vcpus[i], pause_loop_exits);
	ASSERT_TRUE(vm_read_debugfs_stat(self->oc->vm, "pause_loop_exits", &debugfs));
	ASSERT_GT(sum, 0);
	ASSERT_EQ(debugfs, sum);
}

/* The stat exists, as a plain counter, also where it will always be 0. */
TEST(descriptor)
{
	struct kvm_stats_desc *desc;
	struct kvm_vcpu *vcpu;
	struct kvm_vm *vm;

	vm = vm_create_with_one_vcpu(&vcpu, NULL);
	desc = vcpu_find_stat(vcpu, "pause_loop_exits");
	ASSERT_NE(desc, NULL);
	ASSERT_EQ(desc->flags, KVM_STATS_TYPE_CUMULATIVE | KVM_STATS_UNIT_NONE |
			       KVM_STATS_BASE_POW10);
	ASSERT_EQ(desc->exponent, 0);
	ASSERT_EQ(desc->size, 1);
	kvm_vm_free(vm);
}

int main(int argc, char *argv[])
{
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_BINARY_STATS_FD));

	return test_harness_run(argc, argv);
}
