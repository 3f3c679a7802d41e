// SPDX-License-Identifier: GPL-2.0-only
/*
 * Spin, halt, kick and interrupt in guests whose vCPUs come, move and go.
 *
 * A few threads run the vCPUs of a VM, whichever is free, so that each vCPU
 * runs on changing threads.  Meanwhile the main thread moves the threads
 * between CPUs, interrupts them with signals, adds vCPUs, and fails to add some,
 * whose index in KVM is then used again.  Another VM spins all along, while
 * VMs next to it come and go.
 *
 * What can go wrong shows as a report of the kernel.  In the end, when nothing
 * waits for a CPU, KVM has to know that: a vCPU that spins finds nobody to
 * even look at.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "apic.h"
#include "overcommit.h"
#include "processor.h"
#include "test_util.h"
#include "yield_trace.h"

#define NR_VMS		4	/* one after another */
#define NR_THREADS	6
#define FIRST_VCPUS	8
#define MAX_VCPUS	32
#define NR_RUNS		150	/* of each thread */
#define NR_PAUSES	50
#define LAST_PAUSES	12000	/* for two exits at least, on any hardware */
#define WAKE_VECTOR	0xf0

/* The order in which a vCPU does these is up to its own generator. */
enum { SPIN, HALT, KICK, INTERRUPT, SCHED_YIELD, NR_ACTIONS };

static bool guest_at_rest;

static u32 rnd(u32 *state)
{
	/* Numerical Recipes' generator; the low bits are poor. */
	*state = *state * 1664525 + 1013904223;
	return *state >> 16;
}

static void wake_handler(struct ex_regs *regs)
{
	x2apic_write_reg(APIC_EOI, 0);
}

static void guest_code(u32 vcpu)
{
	u32 seed = vcpu + 1, dest;
	int i;

	x2apic_enable();
	sti();
	for (;;) {
		dest = rnd(&seed) % MAX_VCPUS;	/* may be absent, or self */
		switch (READ_ONCE(guest_at_rest) ? SPIN : rnd(&seed) % NR_ACTIONS) {
		case SPIN:
			for (i = 0; i < (guest_at_rest ? LAST_PAUSES : NR_PAUSES); i++)
				cpu_relax();
			break;
		case HALT:
			/* At rest, nobody else would wake it up. */
			cli();
			if (!READ_ONCE(guest_at_rest))
				safe_halt();
			sti();
			break;
		case KICK:
			kvm_hypercall(KVM_HC_KICK_CPU, 0, dest, 0, 0);
			break;
		case INTERRUPT:
			x2apic_write_reg(APIC_ICR, (u64)dest << 32 |
					 APIC_DEST_PHYSICAL | APIC_DM_FIXED |
					 WAKE_VECTOR);
			break;
		case SCHED_YIELD:
			kvm_hypercall(KVM_HC_SCHED_YIELD, dest, 0, 0, 0);
			break;
		}
		GUEST_SYNC(vcpu);
	}
}

struct churn_vm {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpus[MAX_VCPUS];
	pthread_mutex_t busy[MAX_VCPUS];
	atomic_int nr_vcpus;
	pthread_t threads[NR_THREADS];
	atomic_int nr_done;
	atomic_bool stop;	/* before NR_RUNS */
	atomic_bool forever;	/* until then */
};

struct churn_thread {
	struct churn_vm *cvm;
	u32 seed;
};

static void interrupt_run(int sig)
{
	/* Makes KVM_RUN return -EINTR, which is all. */
}

static void run_once(struct kvm_vcpu *vcpu)
{
	struct ucall uc;

	if (__vcpu_run(vcpu)) {
		TEST_ASSERT(errno == EINTR || errno == EAGAIN,
			    "KVM_RUN failed on vCPU %u", vcpu->id);
		return;
	}
	switch (get_ucall(vcpu, &uc)) {
	case UCALL_SYNC:
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

static void *run_vcpus(void *arg)
{
	struct churn_thread *t = arg;
	struct churn_vm *cvm = t->cvm;
	int i, n;

	for (n = 0; (n < NR_RUNS || cvm->forever) && !cvm->stop; n++) {
		i = rnd(&t->seed) % cvm->nr_vcpus;
		/* There are more vCPUs than threads: some other is free. */
		while (pthread_mutex_trylock(&cvm->busy[i]))
			i = (i + 1) % cvm->nr_vcpus;
		run_once(cvm->vcpus[i]);
		pthread_mutex_unlock(&cvm->busy[i]);
	}
	cvm->nr_done++;
	free(t);
	return NULL;
}

static void add_vcpu(struct churn_vm *cvm)
{
	int i = cvm->nr_vcpus;

	if (i == MAX_VCPUS)
		return;
	cvm->vcpus[i] = vm_vcpu_add(cvm->vm, i, guest_code);
	vcpu_args_set(cvm->vcpus[i], 1, (u64)i);
	cvm->nr_vcpus++;
}

/* Without a file descriptor left, creation fails after the index was given. */
static void fail_to_add_vcpu(struct churn_vm *cvm)
{
	struct rlimit old, none;
	int r;

	TEST_ASSERT(!getrlimit(RLIMIT_NOFILE, &old), "Failed to get the limit");
	none = old;
	none.rlim_cur = 0;
	TEST_ASSERT(!setrlimit(RLIMIT_NOFILE, &none), "Failed to set the limit");
	r = __vm_ioctl(cvm->vm, KVM_CREATE_VCPU, (void *)(unsigned long)MAX_VCPUS);
	TEST_ASSERT(r < 0 && errno == EMFILE, "Created a vCPU without a file");
	TEST_ASSERT(!setrlimit(RLIMIT_NOFILE, &old), "Failed to set the limit");
}

static struct churn_vm *start_vm(bool forever, u32 seed)
{
	struct churn_vm *cvm = calloc(1, sizeof(*cvm));
	struct churn_thread *t;
	int i;

	TEST_ASSERT(cvm, "Out of memory");
	cvm->forever = forever;
	cvm->vm = vm_create(MAX_VCPUS);
	vm_install_exception_handler(cvm->vm, WAKE_VECTOR, wake_handler);
	for (i = 0; i < MAX_VCPUS; i++)
		pthread_mutex_init(&cvm->busy[i], NULL);
	while (cvm->nr_vcpus < FIRST_VCPUS)
		add_vcpu(cvm);

	for (i = 0; i < NR_THREADS; i++) {
		t = malloc(sizeof(*t));
		TEST_ASSERT(t, "Out of memory");
		t->cvm = cvm;
		t->seed = seed + i;
		kvm_pthread_create(&cvm->threads[i], NULL, run_vcpus, t);
	}
	return cvm;
}

static void churn(struct churn_vm *cvm, u32 *seed, cpu_set_t *cpus)
{
	pthread_t thread = cvm->threads[rnd(seed) % NR_THREADS];

	switch (rnd(seed) % 8) {
	case 0:
		pin_task_to_random_cpu(thread, cpus);
		break;
	case 1:
		fail_to_add_vcpu(cvm);
		break;
	case 2:
		/* Mostly of existing ones, as there is an end to adding. */
		if (!(rnd(seed) % 16))
			add_vcpu(cvm);
		break;
	default:
		/* Also what lets go of a vCPU that halts for good. */
		pthread_kill(thread, SIGUSR1);
		break;
	}
	sched_yield();
}

static void join_vm(struct churn_vm *cvm)
{
	int i;

	for (i = 0; i < NR_THREADS; i++)
		kvm_pthread_join(cvm->threads[i], NULL);
}

static void interrupt_vcpu(struct kvm_vcpu *vcpu)
{
	struct kvm_msi msi = {
		.address_lo = 0xfee00000 | vcpu->id << 12,
		.data = WAKE_VECTOR,
	};

	/* Of no effect on a vCPU that did not enable its APIC yet. */
	__vm_ioctl(vcpu->vm, KVM_SIGNAL_MSI, &msi);
}

/*
 * Nothing of @cvm runs or waits, but a wake-up that came late may have left a
 * vCPU ->ready, until it is run the next time.  After that, the first walk may
 * still find vCPUs that waited since the last one, the next must not find any.
 */
static void check_at_rest(struct churn_vm *cvm)
{
	struct kvm_vcpu *vcpu = cvm->vcpus[0];
	struct yield_trace_event *e, *last = NULL;
	struct yield_trace trace;
	u64 exits;
	int i;

	WRITE_ONCE(*(bool *)addr_gva2hva(cvm->vm, (gva_t)&guest_at_rest), true);
	for (i = 1; i < cvm->nr_vcpus; i++) {
		interrupt_vcpu(cvm->vcpus[i]);
		run_once(cvm->vcpus[i]);
	}

	yield_trace_start(&trace, 0);
	exits = vcpu_get_stat(vcpu, pause_loop_exits);
	/* It may be halted; it may have something else to do before. */
	while (vcpu_get_stat(vcpu, pause_loop_exits) < exits + 2) {
		interrupt_vcpu(vcpu);
		run_once(vcpu);
	}
	yield_trace_stop(&trace);

	for (e = trace.events; e < trace.end; e++) {
		if (e->type == YIELD_TRACE_YIELD && e->pid == kvm_gettid())
			last = e;
	}
	TEST_ASSERT(last, "No decision in the trace");
	TEST_ASSERT_EQ(last->target_id, -1);
	TEST_ASSERT_EQ(last->visited, 0);
	yield_trace_free(&trace);
}

int main(int argc, char *argv[])
{
	struct churn_vm *cvm, *background;
	cpu_set_t cpus;
	u32 seed = 1;
	int i;

	TEST_REQUIRE(kvm_has_cap(KVM_CAP_BINARY_STATS_FD));
	__TEST_REQUIRE(kvm_has_pause_exits(),
		       "No exits on PAUSE: not supported, or disabled by module parameter");
	__TEST_REQUIRE(!yield_trace_unavailable(), "%s",
		       yield_trace_unavailable());

	signal(SIGUSR1, interrupt_run);
	kvm_sched_getaffinity(0, sizeof(cpus), &cpus);

	background = start_vm(true, 1000);
	for (i = 0; i < NR_VMS; i++) {
		cvm = start_vm(false, 100 * i);
		while (cvm->nr_done < NR_THREADS) {
			churn(cvm, &seed, &cpus);
			churn(background, &seed, &cpus);
		}
		join_vm(cvm);
		pr_info("VM %d: %d vCPUs\n", i, cvm->nr_vcpus);
		check_at_rest(cvm);
		kvm_vm_free(cvm->vm);
		free(cvm);
	}

	background->stop = true;
	while (background->nr_done < NR_THREADS)
		churn(background, &seed, &cpus);
	join_vm(background);
	check_at_rest(background);
	kvm_vm_free(background->vm);
	free(background);
	return 0;
}
