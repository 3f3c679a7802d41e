// SPDX-License-Identifier: GPL-2.0-only
/*
 * Guests with more vCPUs than the CPUs they may run on, whose vCPUs contend
 * for a lock.
 */
#include <limits.h>
#include <pthread.h>
#include <sched.h>

#include "overcommit.h"
#include "ucall_common.h"

struct overcommit_thread {
	pthread_t thread;
	pthread_barrier_t *start;
	struct kvm_vcpu *vcpu;
	int pcpu;
};

/*
 * The guest's own view, in guest memory.  Each counter has a cache line of its
 * own: a spinner that misses the cache would space its PAUSEs too far apart for
 * the hardware to see a loop.
 */
static struct {
	u32 nr_vcpus;
	struct {
		u64 spins;
	} __aligned(64) vcpus[OVERCOMMIT_MAX_VCPUS];
} guest;

static void guest_entry(u32 vcpu, void (*guest_code)(u32 vcpu))
{
	/* As an operating system runs most of the time. */
	sti();
	guest_code(vcpu);
	GUEST_DONE();
}

/*
 * Create a guest of @nr_vcpus vCPUs that each call @guest_code with their index
 * and are done when it returns.  @disable_exits holds KVM_X86_DISABLE_EXITS_*.
 */
struct overcommit *overcommit_create(int nr_vcpus, u64 disable_exits,
				     void (*guest_code)(u32 vcpu))
{
	struct overcommit *oc = calloc(1, sizeof(*oc));
	int i;

	TEST_ASSERT(oc, "Failed to allocate the guest's description");
	TEST_ASSERT(nr_vcpus > 0 && nr_vcpus <= OVERCOMMIT_MAX_VCPUS,
		    "%d vCPUs, expected 1 to %d", nr_vcpus, OVERCOMMIT_MAX_VCPUS);

	oc->nr_vcpus = nr_vcpus;
	oc->vm = vm_create(nr_vcpus);
	if (disable_exits)
		vm_enable_cap(oc->vm, KVM_CAP_X86_DISABLE_EXITS, disable_exits);

	for (i = 0; i < nr_vcpus; i++) {
		oc->vcpus[i] = vm_vcpu_add(oc->vm, i, guest_entry);
		vcpu_args_set(oc->vcpus[i], 2, (u64)i, guest_code);
	}

	memset(&guest, 0, sizeof(guest));
	guest.nr_vcpus = nr_vcpus;
	sync_global_to_guest(oc->vm, guest);
	return oc;
}

static void *run_vcpu(void *arg)
{
	struct overcommit_thread *t = arg;
	struct ucall uc;

	pin_self_to_cpu(t->pcpu);
	pthread_barrier_wait(t->start);

	for (;;) {
		vcpu_run(t->vcpu);
		switch (get_ucall(t->vcpu, &uc)) {
		case UCALL_SYNC:
			/* A holder that waits for its waiters to spin. */
			sched_yield();
			break;
		case UCALL_DONE:
			return NULL;
		case UCALL_ABORT:
			REPORT_GUEST_ASSERT(uc);
			break;
		default:
			TEST_FAIL("vCPU %u: unexpected exit: %u (%s)", t->vcpu->id,
				  t->vcpu->run->exit_reason,
				  exit_reason_str(t->vcpu->run->exit_reason));
		}
	}
}

/*
 * Run all vCPUs of @oc, pinned round robin to @nr_pcpus of the CPUs the caller
 * may run on, until each is done.  No vCPU enters the guest before all threads
 * exist and are where they belong.
 */
void overcommit_run(struct overcommit *oc, int nr_pcpus)
{
	struct overcommit_thread threads[OVERCOMMIT_MAX_VCPUS];
	int pcpus[OVERCOMMIT_MAX_VCPUS];
	pthread_barrier_t start;
	cpu_set_t allowed;
	int i, n = 0;

	TEST_ASSERT(nr_pcpus > 0 && nr_pcpus < oc->nr_vcpus,
		    "%d vCPUs do not overcommit %d CPUs", oc->nr_vcpus, nr_pcpus);
	kvm_sched_getaffinity(0, sizeof(allowed), &allowed);
	for (i = 0; i < CPU_SETSIZE && n < nr_pcpus; i++) {
		if (CPU_ISSET(i, &allowed))
			pcpus[n++] = i;
	}
	TEST_ASSERT(n == nr_pcpus, "Only %d of %d CPUs allowed", n, nr_pcpus);

	TEST_ASSERT(!pthread_barrier_init(&start, NULL, oc->nr_vcpus),
		    "Failed to set up the start line");
	for (i = 0; i < oc->nr_vcpus; i++) {
		threads[i].start = &start;
		threads[i].vcpu = oc->vcpus[i];
		threads[i].pcpu = pcpus[i % nr_pcpus];
		kvm_pthread_create(&threads[i].thread, NULL, run_vcpu, &threads[i]);
	}
	for (i = 0; i < oc->nr_vcpus; i++)
		kvm_pthread_join(threads[i].thread, NULL);
	pthread_barrier_destroy(&start);

	sync_global_from_guest(oc->vm, guest);
	for (i = 0; i < oc->nr_vcpus; i++)
		oc->spins[i] = guest.vcpus[i].spins;
}

void overcommit_free(struct overcommit *oc)
{
	kvm_vm_free(oc->vm);
	free(oc);
}

/* After overcommit_run(): how many rounds @vcpu waited for locks. */
u64 overcommit_guest_spins(struct overcommit *oc, int vcpu)
{
	TEST_ASSERT(vcpu >= 0 && vcpu < oc->nr_vcpus, "No vCPU %d", vcpu);
	return oc->spins[vcpu];
}

/* The number of CPUs the caller may run on. */
int overcommit_max_pcpus(void)
{
	cpu_set_t allowed;

	kvm_sched_getaffinity(0, sizeof(allowed), &allowed);
	return CPU_COUNT(&allowed);
}

/*
 * Does the host exit on loops of PAUSE?  KVM clears the module parameters on
 * CPUs that cannot.
 */
bool kvm_has_pause_exits(void)
{
	if (host_cpu_is_intel)
		return get_kvm_intel_param_integer("ple_gap") != 0;
	return get_kvm_amd_param_integer("pause_filter_count") &&
	       get_kvm_amd_param_integer("pause_filter_thresh");
}

/* The descriptor of the binary stat @name, or NULL. */
struct kvm_stats_desc *vcpu_find_stat(struct kvm_vcpu *vcpu, const char *name)
{
	struct kvm_binary_stats *stats = &vcpu->stats;
	struct kvm_stats_desc *desc;
	int i;

	if (!stats->desc) {
		read_stats_header(stats->fd, &stats->header);
		stats->desc = read_stats_descriptors(stats->fd, &stats->header);
	}

	for (i = 0; i < stats->header.num_desc; i++) {
		desc = get_stats_descriptor(stats->desc, i, &stats->header);
		if (!strcmp(desc->name, name))
			return desc;
	}
	return NULL;
}

/* Read @name from the VM's debugfs directory.  False: there is no such file. */
bool vm_read_debugfs_stat(struct kvm_vm *vm, const char *name, u64 *value)
{
	char path[PATH_MAX];
	FILE *f;
	int n;

	snprintf(path, sizeof(path), "/sys/kernel/debug/kvm/%d-%d/%s",
		 getpid(), vm->fd, name);
	f = fopen(path, "r");
	if (!f)
		return false;
	n = fscanf(f, "%lu", value);
	TEST_ASSERT(n == 1, "No number in %s", path);
	fclose(f);
	return true;
}

void guest_lock_acquire(struct guest_lock *lock, u32 vcpu, bool pause)
{
	u32 ticket = __atomic_fetch_add(&lock->next, 1, __ATOMIC_RELAXED);

	while (__atomic_load_n(&lock->owner, __ATOMIC_ACQUIRE) != ticket) {
		WRITE_ONCE(guest.vcpus[vcpu].spins, guest.vcpus[vcpu].spins + 1);
		if (pause)
			cpu_relax();
	}
}

void guest_lock_release(struct guest_lock *lock)
{
	__atomic_store_n(&lock->owner, lock->owner + 1, __ATOMIC_RELEASE);
}

/*
 * The same as a paravirt guest does it: halt after @max_spins rounds, until the
 * vCPU that releases the lock kicks this one.  All vCPUs that use @lock use these
 * two.  They need x2APIC mode, and an APIC ID that is the index.
 */
void guest_lock_acquire_or_halt(struct guest_lock *lock, u32 vcpu, u32 max_spins)
{
	u32 ticket = __atomic_fetch_add(&lock->next, 1, __ATOMIC_RELAXED);
	u32 *halted = &lock->halted[ticket % OVERCOMMIT_MAX_VCPUS];
	u32 i;

	for (;;) {
		for (i = 0; i < max_spins; i++) {
			if (__atomic_load_n(&lock->owner, __ATOMIC_ACQUIRE) == ticket)
				return;
			WRITE_ONCE(guest.vcpus[vcpu].spins,
				   guest.vcpus[vcpu].spins + 1);
			cpu_relax();
		}

		/*
		 * Register, then look again; guest_lock_release_and_kick() does
		 * it the other way round.  A kick before the HLT makes HLT return.
		 */
		__atomic_exchange_n(halted, vcpu + 1, __ATOMIC_SEQ_CST);
		if (__atomic_load_n(&lock->owner, __ATOMIC_SEQ_CST) == ticket) {
			__atomic_exchange_n(halted, 0, __ATOMIC_SEQ_CST);
			return;
		}
		asm volatile("hlt" : : : "memory");
	}
}

void guest_lock_release_and_kick(struct guest_lock *lock)
{
	u32 owner = lock->owner + 1;
	u32 vcpu;

	__atomic_exchange_n(&lock->owner, owner, __ATOMIC_SEQ_CST);
	vcpu = __atomic_exchange_n(&lock->halted[owner % OVERCOMMIT_MAX_VCPUS], 0,
				   __ATOMIC_SEQ_CST);
	if (vcpu)
		kvm_hypercall(KVM_HC_KICK_CPU, 0, vcpu - 1, 0, 0);
}

/*
 * Keep @lock, which @vcpu holds, until each other vCPU has spun @spins rounds
 * since it was created.  The holder does not PAUSE, and leaves the CPU to the waiters between
 * looks, so that how long this takes does not depend on the length of a tick.
 */
void guest_lock_hold_until_spun(struct guest_lock *lock, u32 vcpu, u64 spins)
{
	u32 i;

	GUEST_ASSERT(READ_ONCE(lock->owner) != READ_ONCE(lock->next));
	for (i = 0; i < guest.nr_vcpus; i++) {
		while (i != vcpu && READ_ONCE(guest.vcpus[i].spins) < spins)
			GUEST_SYNC(i);
	}
}
