// SPDX-License-Identifier: GPL-2.0-only
/*
 * Measure what an exit on PAUSE costs when KVM finds nobody to yield to, by the
 * number of vCPUs, and of those that wait for a CPU but can't be yielded to.
 * Or measure what it costs a vCPU to be preempted, or to halt while another one
 * wakes it up.
 *
 * Prints figures and does not judge them.
 *
 * All threads share a CPU.  The one that spins has a real-time policy: those
 * that it preempted stay so, and no time slice of theirs is in its figures.  The
 * guest takes the times itself, of each PAUSE, and the median counts: that is
 * an exit without a tick, as long as most exits take less time than there is
 * between ticks.
 *
 * Hardware that exits on loops of PAUSE only needs -p, and ple_window_grow=0 or
 * pause_filter_count_grow=0, the parameters of kvm_intel and kvm_amd: else KVM
 * lets a vCPU that nobody preempts spin longer and longer between exits.
 */
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "apic.h"
#include "overcommit.h"
#include "processor.h"
#include "test_util.h"
#include "ucall_common.h"

#define MAX_VCPUS	4096
#define MAX_SAMPLES	10000

#define WAKE_VECTOR	0xf0

/* Where guest_loop() ends: there aren't enough ucalls for all vCPUs. */
#define DONE_PORT	0x1001

/* Of real-time policy: the vCPU that spins, and one that it will preempt. */
#define HIGH_PRIORITY	2
#define LOW_PRIORITY	1

static u32 nr_samples = 100;
static u32 nr_pauses = 1;
static u64 samples[MAX_SAMPLES];

/* What host and guest write while both run. */
static struct shared {
	u32 nr_preemptions;
	bool stop;
	bool in_guest[MAX_VCPUS];
} shared;

static void guest_spin(void)
{
	int round;
	u64 start;
	u32 i, j;

	sti();
	/* The first round is a warm-up. */
	for (round = 0; round < 2; round++) {
		GUEST_SYNC(round);
		for (i = 0; i < nr_samples; i++) {
			start = rdtsc();
			for (j = 0; j < nr_pauses; j++)
				cpu_relax();
			samples[i] = rdtsc() - start;
		}
	}
	GUEST_DONE();
}

/* Runs without an exit of its own.  May be at CPL 3, see make_user(). */
static void guest_loop(u32 vcpu)
{
	sti();
	WRITE_ONCE(shared.in_guest[vcpu], true);
	while (!READ_ONCE(shared.stop))
		barrier();
	asm volatile("outb %%al, %[port]" : : [port] "d" ((u16)DONE_PORT), "a" (0));
}

/* Between two increments of nr_preemptions, the longest gap is a preemption. */
static void guest_see_gaps(void)
{
	u64 now, last, longest = 0;
	u32 n = 0, seen, value;

	sti();
	WRITE_ONCE(shared.in_guest[0], true);
	seen = READ_ONCE(shared.nr_preemptions);
	last = rdtsc();
	while (n < nr_samples) {
		value = READ_ONCE(shared.nr_preemptions);
		now = rdtsc();
		longest = max(longest, now - last);
		last = now;
		if (value != seen) {
			samples[n++] = longest;
			longest = 0;
			seen = value;
		}
	}
	GUEST_DONE();
}

static void wake_handler(struct ex_regs *regs)
{
	x2apic_write_reg(APIC_EOI, 0);
}

static void wake_up(u32 vcpu)
{
	x2apic_write_reg(APIC_ICR, APIC_DEST_PHYSICAL | APIC_DM_FIXED | WAKE_VECTOR |
				   (u64)vcpu << 32);
}

/*
 * Two vCPUs that share a CPU wake each other up and halt, in turn.  An interrupt
 * that comes before the HLT is pending until then.
 */
static void guest_halt(u32 vcpu)
{
	u64 now, last = 0;
	u32 i;

	x2apic_enable();
	cli();
	WRITE_ONCE(shared.in_guest[vcpu], true);
	if (vcpu) {
		for (;;) {
			safe_halt();
			cli();
			if (READ_ONCE(shared.stop))
				break;
			wake_up(0);
		}
	} else {
		/* The first half is a warm-up. */
		for (i = 0; i < 2 * nr_samples; i++) {
			now = rdtsc();
			samples[i % nr_samples] = now - last;
			last = now;
			wake_up(1);
			safe_halt();
			cli();
		}
		WRITE_ONCE(shared.stop, true);
		wake_up(1);
	}
	GUEST_DONE();
}

static void set_policy(pthread_t thread, int policy, int priority)
{
	struct sched_param param = { .sched_priority = priority };
	int r = pthread_setschedparam(thread, policy, &param);

	__TEST_REQUIRE(!r, "No right to set real-time scheduling policies");
}

static void run_until_done(struct kvm_vcpu *vcpu)
{
	struct ucall uc;

	vcpu_run(vcpu);
	if (vcpu->run->exit_reason == KVM_EXIT_IO && vcpu->run->io.port == DONE_PORT)
		return;

	switch (get_ucall(vcpu, &uc)) {
	case UCALL_DONE:
		break;
	case UCALL_ABORT:
		REPORT_GUEST_ASSERT(uc);
		break;
	default:
		TEST_FAIL("vCPU %u: unexpected exit: %u (%s)", vcpu->id,
			  vcpu->run->exit_reason,
			  exit_reason_str(vcpu->run->exit_reason));
	}
}

static void *run_vcpu(void *arg)
{
	set_policy(pthread_self(), SCHED_FIFO, LOW_PRIORITY);
	run_until_done(arg);
	return NULL;
}

/* When this returns, the caller has preempted @vcpu in the guest. */
static pthread_t start_and_preempt(struct kvm_vcpu *vcpu, struct shared *host_shared)
{
	pthread_t thread;

	kvm_pthread_create(&thread, NULL, run_vcpu, vcpu);
	while (!READ_ONCE(host_shared->in_guest[vcpu->id]))
		usleep(50);
	return thread;
}

/* After all pages are mapped: let CPL 3 access them. */
static void map_for_user(struct kvm_vm *vm, gpa_t table, int level)
{
	u64 *pte = addr_gpa2hva(vm, table);
	int i;

	for (i = 0; i < 512; i++) {
		if (!is_present_pte(&vm->mmu, &pte[i]))
			continue;
		pte[i] |= PTE_USER_MASK(&vm->mmu);
		if (level > PG_LEVEL_4K && !is_huge_pte(&vm->mmu, &pte[i]))
			map_for_user(vm, PTE_GET_PA(pte[i]), level - 1);
	}
}

static void make_user(struct kvm_vcpu *vcpu)
{
	struct kvm_sregs sregs;
	struct kvm_regs regs;

	vcpu_sregs_get(vcpu, &sregs);
	sregs.cs.selector |= 3;
	sregs.cs.dpl = 3;
	sregs.ss = sregs.ds;
	sregs.ss.selector |= 3;
	sregs.ss.dpl = 3;
	vcpu_sregs_set(vcpu, &sregs);

	/* With the right to use STI and ports. */
	vcpu_regs_get(vcpu, &regs);
	regs.rflags |= 3 * X86_EFLAGS_IOPL;
	vcpu_regs_set(vcpu, &regs);
}

static u64 count_exits(struct kvm_vcpu *vcpu, bool has_stat)
{
	u64 value = 0;

	if (has_stat)
		kvm_get_stat(&vcpu->stats, "pause_loop_exits", &value, 1);
	return value;
}

/* Returns the number of exits on PAUSE, measured or, without a stat, assumed. */
static u64 measure_spin(struct kvm_vcpu *spinner)
{
	bool has_stat = vcpu_find_stat(spinner, "pause_loop_exits");
	u64 before = 0;
	struct ucall uc;
	int round;

	for (round = 0; round < 2; round++) {
		vcpu_run(spinner);
		TEST_ASSERT_EQ(get_ucall(spinner, &uc), UCALL_SYNC);
		before = count_exits(spinner, has_stat);
	}
	run_until_done(spinner);
	return has_stat ? count_exits(spinner, has_stat) - before :
			  (u64)nr_samples * nr_pauses;
}

/* Wake up every now and then, which preempts @vcpu, and count it. */
static void measure_preemption(struct kvm_vcpu *vcpu, struct shared *host_shared)
{
	pthread_t thread = start_and_preempt(vcpu, host_shared);
	u32 n = 0;

	/* As often as the guest needs: it may not have looked in between. */
	while (pthread_tryjoin_np(thread, NULL)) {
		WRITE_ONCE(host_shared->nr_preemptions, ++n);
		usleep(50);
	}
}

/* Both of one priority: neither preempts the other when it wakes it up. */
static void measure_halts(struct kvm_vcpu **vcpus, struct shared *host_shared)
{
	pthread_t thread = start_and_preempt(vcpus[1], host_shared);

	set_policy(pthread_self(), SCHED_FIFO, LOW_PRIORITY);
	run_until_done(vcpus[0]);
	kvm_pthread_join(thread, NULL);
}

static int compare(const void *a, const void *b)
{
	u64 x = *(const u64 *)a, y = *(const u64 *)b;

	return x < y ? -1 : x > y;
}

/* Times are of an event, of which there were @nr_events in all samples. */
static void print_samples(struct kvm_vcpu *vcpu, u64 nr_events)
{
	u64 sum = 0;
	double ns;
	u32 i;

	TEST_ASSERT(nr_events, "No exits: more PAUSEs a sample (-p) may help");
	ns = 1000000.0 / __vcpu_ioctl(vcpu, KVM_GET_TSC_KHZ, NULL) *
	     nr_samples / nr_events;
	qsort(samples, nr_samples, sizeof(samples[0]), compare);
	for (i = 0; i < nr_samples; i++)
		sum += samples[i];
	printf(" samples %u events %lu ns_median %.0f ns_min %.0f ns_mean %.0f\n",
	       nr_samples, nr_events, samples[nr_samples / 2] * ns,
	       samples[0] * ns, sum * ns / nr_samples);
}

static void help(const char *name)
{
	printf("usage: %s [-h] [-v vCPUs] [-k preempted] [-i index] [-t] [-c] [-H]\n"
	       "       [-s samples] [-p PAUSEs]\n"
	       " -v: number of vCPUs; vCPU 0 spins (default: 2)\n"
	       " -k: how many of the others are preempted (default: 0)\n"
	       " -i: index of the first of them (default: 1)\n"
	       " -t: KVM tries to yield to them, and can't, as their threads are of another\n"
	       "     scheduling policy (default: they are at CPL 3, so KVM doesn't try)\n"
	       " -c: instead, the cost of being preempted, of vCPU 0\n"
	       " -H: instead, the cost of two vCPUs that wake each other up and halt: of one\n"
	       "     wake-up and one HLT of each, and two switches\n"
	       " -s: number of samples, at most %d (default: %u)\n"
	       " -p: PAUSEs a sample (default: %u).  If the hardware exits on loops of PAUSE\n"
	       "     only, enough for a few exits; an exit's time is then with its PAUSEs\n",
	       name, MAX_SAMPLES, nr_samples, nr_pauses);
}

int main(int argc, char *argv[])
{
	int nr_vcpus = 2, nr_preempted = 0, first = 1, opt, i;
	bool tried = false, preemption = false, halts = false;
	struct kvm_vcpu **vcpus;
	struct shared *host_shared;
	pthread_t *threads;
	struct kvm_vm *vm;
	u64 nr_events;

	TEST_REQUIRE(kvm_has_cap(KVM_CAP_BINARY_STATS_FD));
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_GET_TSC_KHZ));

	while ((opt = getopt(argc, argv, "hv:k:i:tcHs:p:")) != -1) {
		switch (opt) {
		case 'v':
			nr_vcpus = atoi_positive("Number of vCPUs", optarg);
			break;
		case 'k':
			nr_preempted = atoi_non_negative("Number of preempted vCPUs", optarg);
			break;
		case 'i':
			first = atoi_positive("Index", optarg);
			break;
		case 't':
			tried = true;
			break;
		case 'c':
			preemption = true;
			break;
		case 'H':
			halts = true;
			break;
		case 's':
			nr_samples = atoi_positive("Number of samples", optarg);
			break;
		case 'p':
			nr_pauses = atoi_positive("Number of PAUSEs", optarg);
			break;
		case 'h':
			help(argv[0]);
			return 0;
		default:
			help(argv[0]);
			return 1;
		}
	}

	if (nr_vcpus > MAX_VCPUS || nr_samples > MAX_SAMPLES ||
	    (nr_preempted && first + nr_preempted > nr_vcpus) ||
	    (halts && (preemption || nr_preempted || nr_vcpus < 2))) {
		help(argv[0]);
		return 1;
	}
	__TEST_REQUIRE(nr_vcpus <= kvm_check_cap(KVM_CAP_MAX_VCPUS),
		       "KVM has at most %d vCPUs", kvm_check_cap(KVM_CAP_MAX_VCPUS));
	__TEST_REQUIRE(preemption || halts || kvm_has_pause_exits(),
		       "No exits on PAUSE: not supported, or disabled by module parameter");

	vcpus = calloc(nr_vcpus, sizeof(*vcpus));
	threads = calloc(nr_vcpus, sizeof(*threads));
	TEST_ASSERT(vcpus && threads, "Out of memory");

	/* Those that never run need no state. */
	vm = vm_create(nr_vcpus);
	vm_install_exception_handler(vm, WAKE_VECTOR, wake_handler);
	for (i = 0; i < nr_vcpus; i++) {
		if (halts && i < 2) {
			vcpus[i] = vm_vcpu_add(vm, i, guest_halt);
			vcpu_args_set(vcpus[i], 1, (u64)i);
		} else if (!i) {
			vcpus[i] = vm_vcpu_add(vm, i, preemption ? guest_see_gaps : guest_spin);
		} else if (i >= first && i < first + nr_preempted) {
			vcpus[i] = vm_vcpu_add(vm, i, guest_loop);
			vcpu_args_set(vcpus[i], 1, (u64)i);
			if (!tried)
				make_user(vcpus[i]);
		} else {
			vcpus[i] = __vm_vcpu_add(vm, i);
		}
	}
	sync_global_to_guest(vm, nr_samples);
	sync_global_to_guest(vm, nr_pauses);
	if (nr_preempted && !tried)
		map_for_user(vm, vm->mmu.pgd, vm->mmu.pgtable_levels);
	host_shared = addr_gva2hva(vm, (gva_t)&shared);

	pin_self_to_any_cpu();
	set_policy(pthread_self(), SCHED_FIFO, HIGH_PRIORITY);
	for (i = first; i < first + nr_preempted; i++) {
		threads[i] = start_and_preempt(vcpus[i], host_shared);
		set_policy(threads[i], SCHED_OTHER, 0);
	}

	if (halts) {
		measure_halts(vcpus, host_shared);
		nr_events = nr_samples;
	} else if (preemption) {
		measure_preemption(vcpus[0], host_shared);
		nr_events = nr_samples;
	} else {
		nr_events = measure_spin(vcpus[0]);
	}
	sync_global_from_guest(vm, samples);

	printf("cost_of %s vcpus %d preempted %d",
	       halts ? "two_halts" : preemption ? "preemption" : "exit",
	       nr_vcpus, nr_preempted);
	if (nr_preempted)
		printf(" first %d which_are %s", first, tried ? "tried" : "skipped");
	else
		printf(" first - which_are -");
	print_samples(vcpus[0], nr_events);

	WRITE_ONCE(host_shared->stop, true);
	for (i = first; i < first + nr_preempted; i++)
		kvm_pthread_join(threads[i], NULL);
	kvm_vm_free(vm);
	free(threads);
	free(vcpus);
	return 0;
}
