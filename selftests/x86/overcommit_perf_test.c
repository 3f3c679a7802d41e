// SPDX-License-Identifier: GPL-2.0-only
/*
 * Measure how often vCPUs that outnumber their CPUs get a contended lock.
 *
 * Prints figures and does not judge them.
 */
#include <getopt.h>
#include <time.h>

#include "overcommit.h"
#include "test_util.h"

static struct guest_lock lock;
static u32 nr_rounds;
static u32 nr_work;
static u64 nr_acquired;

static void guest_code(u32 vcpu)
{
	u32 i, j;

	/*
	 * Start with all vCPUs in the queue, see main().  As the lock is fair,
	 * they stay there.
	 */
	if (!vcpu) {
		guest_lock_hold_until_spun(&lock, vcpu, 1);
		guest_lock_release(&lock);
	}

	for (i = 0; i < nr_rounds; i++) {
		guest_lock_acquire(&lock, vcpu, true);
		nr_acquired++;
		for (j = 0; j < nr_work; j++)
			barrier();
		guest_lock_release(&lock);
	}
}

static u64 sum_stat(struct overcommit *oc, const char *name)
{
	u64 value, sum = 0;
	int i;

	for (i = 0; i < oc->nr_vcpus; i++) {
		kvm_get_stat(&oc->vcpus[i]->stats, name, &value, 1);
		sum += value;
	}
	return sum;
}

static void help(const char *name)
{
	printf("usage: %s [-h] [-v vCPUs] [-c CPUs] [-r rounds] [-w work]\n"
	       " -v: number of vCPUs, more than CPUs and at most %d (default: 4)\n"
	       " -c: number of CPUs the vCPUs are pinned to (default: 1)\n"
	       " -r: how often each vCPU takes the lock (default: 1000)\n"
	       " -w: rounds of an empty loop while it holds the lock (default: 100)\n",
	       name, OVERCOMMIT_MAX_VCPUS);
}

int main(int argc, char *argv[])
{
	int nr_vcpus = 4, nr_pcpus = 1, opt;
	struct timespec start, elapsed;
	struct overcommit *oc;
	u64 spins = 0;
	int i;

	TEST_REQUIRE(kvm_has_cap(KVM_CAP_BINARY_STATS_FD));

	nr_rounds = 1000;
	nr_work = 100;
	while ((opt = getopt(argc, argv, "hv:c:r:w:")) != -1) {
		switch (opt) {
		case 'v':
			nr_vcpus = atoi_positive("Number of vCPUs", optarg);
			break;
		case 'c':
			nr_pcpus = atoi_positive("Number of CPUs", optarg);
			break;
		case 'r':
			nr_rounds = atoi_positive("Number of rounds", optarg);
			break;
		case 'w':
			nr_work = atoi_non_negative("Work", optarg);
			break;
		case 'h':
			help(argv[0]);
			return 0;
		default:
			help(argv[0]);
			return 1;
		}
	}

	if (nr_vcpus > OVERCOMMIT_MAX_VCPUS || nr_vcpus <= nr_pcpus ||
	    nr_pcpus > overcommit_max_pcpus()) {
		help(argv[0]);
		return 1;
	}

	lock = (struct guest_lock) { .next = 1 };
	oc = overcommit_create(nr_vcpus, 0, guest_code);
	sync_global_to_guest(oc->vm, lock);
	sync_global_to_guest(oc->vm, nr_rounds);
	sync_global_to_guest(oc->vm, nr_work);
	sync_global_to_guest(oc->vm, nr_acquired);

	clock_gettime(CLOCK_MONOTONIC, &start);
	overcommit_run(oc, nr_pcpus);
	elapsed = timespec_elapsed(start);

	sync_global_from_guest(oc->vm, nr_acquired);
	TEST_ASSERT_EQ(nr_acquired, (u64)nr_vcpus * nr_rounds);
	for (i = 0; i < nr_vcpus; i++)
		spins += overcommit_guest_spins(oc, i);

	printf("vcpus %d cpus %d acquisitions %lu ns_per_acquisition %lu spins %lu exits %lu",
	       nr_vcpus, nr_pcpus, nr_acquired,
	       timespec_to_ns(elapsed) / nr_acquired, spins, sum_stat(oc, "exits"));
	if (vcpu_find_stat(oc->vcpus[0], "pause_loop_exits"))
		printf(" pause_loop_exits %lu\n", sum_stat(oc, "pause_loop_exits"));
	else
		printf(" pause_loop_exits -\n");

	overcommit_free(oc);
	return 0;
}
