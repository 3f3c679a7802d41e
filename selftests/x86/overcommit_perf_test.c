// SPDX-License-Identifier: GPL-2.0-only
/*
 * Measure how often vCPUs that outnumber their CPUs get a contended lock, and
 * whether those run next that KVM yields to.
 *
 * Prints figures and does not judge them.
 */
#include <getopt.h>
#include <pthread.h>
#include <time.h>

#include "apic.h"
#include "overcommit.h"
#include "test_util.h"
#include "yield_trace.h"

#define MAX_LOCKS	64

static struct guest_lock locks[MAX_LOCKS];
static u32 nr_locks = 1;
static u32 nr_rounds = 1000;
static u32 nr_work = 100;
static u32 nr_work_outside;
static u32 nr_spins;		/* 0: waiters never halt */
static u64 nr_acquired[MAX_LOCKS];

static void work(u32 rounds)
{
	u32 i;

	for (i = 0; i < rounds; i++)
		barrier();
}

static void guest_code(u32 vcpu)
{
	u32 i, n, random = vcpu + 1;

	if (nr_spins)
		x2apic_enable();

	/*
	 * Start with all vCPUs in the queue, see main().  As the lock is fair,
	 * they stay there, if there is but one, and nothing to do outside.
	 */
	if (!vcpu && nr_locks == 1) {
		guest_lock_hold_until_spun(&locks[0], vcpu, 1);
		if (nr_spins)
			guest_lock_release_and_kick(&locks[0]);
		else
			guest_lock_release(&locks[0]);
	}

	for (i = 0; i < nr_rounds; i++) {
		random = random * 1103515245 + 12345;
		n = (random >> 16) % nr_locks;
		if (nr_spins)
			guest_lock_acquire_or_halt(&locks[n], vcpu, nr_spins);
		else
			guest_lock_acquire(&locks[n], vcpu, true);
		nr_acquired[n]++;
		work(nr_work);
		if (nr_spins)
			guest_lock_release_and_kick(&locks[n]);
		else
			guest_lock_release(&locks[n]);
		work(nr_work_outside);
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

/* A task that is not a vCPU, never sleeps, and never yields. */
static bool stop_competitor;

static void *compete(void *arg)
{
	struct timespec *cpu_time = arg;

	while (!READ_ONCE(stop_competitor))
		barrier();
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, cpu_time);
	return NULL;
}

/* Of the yields for one reason, how often did the target run next? */
static void print_hits(struct yield_trace *trace, const char *reason)
{
	struct yield_trace_event *e, *f;
	u64 nr = 0, hits = 0;
	bool halt = !strcmp(reason, "halt");

	for (e = trace->events; e < trace->end; e++) {
		if (e->type != YIELD_TRACE_YIELD || e->result <= 0 ||
		    e->target_id == -1 || strcmp(e->reason, reason))
			continue;
		nr++;
		/*
		 * The yielder's next switch if it is about to block, else the
		 * one since its exit; if there is none, it was picked again.
		 */
		f = e;
		do {
			f += halt ? 1 : -1;
		} while (f >= trace->events && f < trace->end &&
			 (f->pid != e->pid || f->type == YIELD_TRACE_YIELD));
		if (f >= trace->events && f < trace->end &&
		    f->type == YIELD_TRACE_SWITCH)
			hits += f->next_pid == e->target_pid;
	}
	printf(" %s_yields %lu %s_hits %lu", reason, nr, reason, hits);
}

static void help(const char *name)
{
	printf("usage: %s [-h] [-v vCPUs] [-c CPUs] [-r rounds] [-w work]\n"
	       "       [-o work] [-l locks] [-k spins] [-f] [-t]\n"
	       " -v: number of vCPUs, more than CPUs and at most %d (default: 4)\n"
	       " -c: number of CPUs the vCPUs are pinned to (default: 1)\n"
	       " -r: how often each vCPU takes the lock (default: 1000)\n"
	       " -w: rounds of an empty loop while it holds the lock (default: 100)\n"
	       " -o: the same while it does not (default: 0)\n"
	       " -l: number of locks, of which it takes one at random, at most %d (default: 1)\n"
	       " -k: halt after this many rounds of waiting, and be kicked (default: spin)\n"
	       " -f: a task that only computes competes for the CPU, of which there is but one;\n"
	       "     tell its share\n"
	       " -t: trace whether the vCPUs that are yielded to run next; on one CPU, too\n",
	       name, OVERCOMMIT_MAX_VCPUS, MAX_LOCKS);
}

int main(int argc, char *argv[])
{
	struct timespec start, elapsed, cpu_time = {};
	int nr_vcpus = 4, nr_pcpus = 1, opt;
	bool competitor = false, tracing = false;
	struct yield_trace trace = {};
	u64 spins = 0, acquired = 0;
	struct overcommit *oc;
	pthread_t thread;
	int i;

	TEST_REQUIRE(kvm_has_cap(KVM_CAP_BINARY_STATS_FD));

	while ((opt = getopt(argc, argv, "hv:c:r:w:o:l:k:ft")) != -1) {
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
		case 'o':
			nr_work_outside = atoi_non_negative("Work outside", optarg);
			break;
		case 'l':
			nr_locks = atoi_positive("Number of locks", optarg);
			break;
		case 'k':
			nr_spins = atoi_positive("Number of spins", optarg);
			break;
		case 'f':
			competitor = true;
			break;
		case 't':
			tracing = true;
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
	    nr_pcpus > overcommit_max_pcpus() || nr_locks > MAX_LOCKS ||
	    ((competitor || tracing) && nr_pcpus > 1)) {
		help(argv[0]);
		return 1;
	}
	if (tracing && yield_trace_unavailable())
		__TEST_REQUIRE(false, "%s", yield_trace_unavailable());

	/* vCPU 0 has it at first. */
	if (nr_locks == 1)
		locks[0].next = 1;
	oc = overcommit_create(nr_vcpus, 0, guest_code);
	sync_global_to_guest(oc->vm, locks);
	sync_global_to_guest(oc->vm, nr_locks);
	sync_global_to_guest(oc->vm, nr_rounds);
	sync_global_to_guest(oc->vm, nr_work);
	sync_global_to_guest(oc->vm, nr_work_outside);
	sync_global_to_guest(oc->vm, nr_spins);

	if (tracing)
		yield_trace_start(&trace, BIT(YIELD_TRACE_SWITCH) |
					  BIT(YIELD_TRACE_EXIT));
	clock_gettime(CLOCK_MONOTONIC, &start);
	if (competitor) {
		pin_self_to_any_cpu();
		kvm_pthread_create(&thread, NULL, compete, &cpu_time);
	}
	overcommit_run(oc, nr_pcpus);
	elapsed = timespec_elapsed(start);
	if (competitor) {
		WRITE_ONCE(stop_competitor, true);
		kvm_pthread_join(thread, NULL);
	}
	if (tracing)
		yield_trace_stop(&trace);

	sync_global_from_guest(oc->vm, nr_acquired);
	for (i = 0; i < nr_locks; i++)
		acquired += nr_acquired[i];
	TEST_ASSERT_EQ(acquired, (u64)nr_vcpus * nr_rounds);
	for (i = 0; i < nr_vcpus; i++)
		spins += overcommit_guest_spins(oc, i);

	printf("vcpus %d cpus %d acquisitions %lu ns_per_acquisition %lu spins %lu exits %lu",
	       nr_vcpus, nr_pcpus, acquired,
	       timespec_to_ns(elapsed) / acquired, spins, sum_stat(oc, "exits"));
	if (vcpu_find_stat(oc->vcpus[0], "pause_loop_exits"))
		printf(" pause_loop_exits %lu", sum_stat(oc, "pause_loop_exits"));
	else
		printf(" pause_loop_exits -");
	if (nr_spins)
		printf(" halts %lu", sum_stat(oc, "halt_exits"));
	if (competitor)
		printf(" competitor_permille %lu",
		       1000 * timespec_to_ns(cpu_time) / timespec_to_ns(elapsed));
	if (tracing) {
		print_hits(&trace, "spin");
		print_hits(&trace, "kick");
		print_hits(&trace, "halt");
	}
	printf("\n");

	yield_trace_free(&trace);
	overcommit_free(oc);
	return 0;
}
