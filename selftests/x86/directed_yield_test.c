// SPDX-License-Identifier: GPL-2.0-only
/*
 * Test to whom a vCPU yields, and to whom not; and for whom it makes way when
 * it halts.
 *
 * All vCPUs of most tests share one CPU.  Whenever the one that spins runs, the
 * others do not, so what they are doing when it exits is known without timing:
 * a vCPU in a loop in the guest has been preempted there, and so on.
 *
 * Decisions are read from the tracepoint kvm_directed_yield, and the totals are
 * compared to the vCPU's stats.
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>

#include "apic.h"
#include "hyperv.h"
#include "kvm_test_harness.h"
#include "overcommit.h"
#include "processor.h"
#include "test_util.h"
#include "yield_trace.h"

#define MAX_VCPUS	16
#define NR_IDLE_VCPUS	300
#define WAKE_VECTOR	0xf0

/* PAUSEs that any filter sees as a loop, see pause_loop_exits_test.c. */
#define SPINS		6000

/*
 * A test that waits for something to happen N times gives up after this many
 * exits on PAUSE; whatever it is about has happened by then, or never will.
 */
#define MAX_EXITS	5000

#define NR_HYPERCALLS	5

/* Of a contended lock, by each vCPU. */
#define NR_ROUNDS	30

/*
 * How often vCPUs kick each other; the environment's NR_KICKS overrides it.  Some
 * seconds with KVM in an emulator, less than one on hardware.
 */
#define NR_KICKS	20000

#define XEN_HYPERCALL_MSR 0x40000200
#define XEN_SCHED_OP	29
#define XEN_SCHEDOP_YIELD 0

/* Shared by host and guest; in each guest's memory.  By vCPU. */
static struct shared {
	bool in;		/* The vCPU is where its role wants it. */
	bool leave;		/* It shall return. */
	u32 wakes;		/* How often it came back from HLT. */
	u32 rounds;		/* Grows while it runs. */
} __aligned(64) shared[MAX_VCPUS];

static bool kick_wanted;

/* Whose turn it is, how many there were, and how many there shall be. */
static u32 turn;
static u32 nr_turns;
static u32 max_turns;

/* What vCPUs contend for, and how often they got it. */
static struct guest_lock lock;
static u32 nr_contenders;
static u32 nr_acquired;

/* Roles of vCPUs in the guest. */

static void guest_spin(u32 vcpu)
{
	sti();
	WRITE_ONCE(shared[vcpu].in, true);
	while (!READ_ONCE(shared[vcpu].leave))
		cpu_relax();
	GUEST_DONE();
}

static void guest_spin_n(u32 vcpu)
{
	int i;

	sti();
	WRITE_ONCE(shared[vcpu].in, true);
	for (i = 0; i < SPINS; i++)
		cpu_relax();
	GUEST_DONE();
}

/* Runs without an exit of its own: on one CPU with others, it is preempted. */
static void guest_busy(u32 vcpu)
{
	sti();
	WRITE_ONCE(shared[vcpu].in, true);
	while (!READ_ONCE(shared[vcpu].leave))
		WRITE_ONCE(shared[vcpu].rounds, shared[vcpu].rounds + 1);
	GUEST_DONE();
}

/* The same at CPL 3, where it can tell the host nothing: see make_user(). */
static void guest_busy_user(u32 vcpu)
{
	WRITE_ONCE(shared[vcpu].in, true);
	for (;;)
		barrier();
}

static void wake_handler(struct ex_regs *regs)
{
	x2apic_write_reg(APIC_EOI, 0);
}

static void guest_halt(u32 vcpu)
{
	x2apic_enable();
	WRITE_ONCE(shared[vcpu].in, true);
	while (!READ_ONCE(shared[vcpu].leave)) {
		safe_halt();
		cli();
		WRITE_ONCE(shared[vcpu].wakes, shared[vcpu].wakes + 1);
	}
	GUEST_DONE();
}

/* What the vCPU's thread does in userspace when it gets a GUEST_SYNC(). */
enum {
	SYNC_STAY,		/* Stay there until the vCPU shall leave. */
	SYNC_WAIT_FOR_HALT,	/* Wait until vCPU 0 is halted, and return. */
};

static void guest_to_userspace(u32 vcpu)
{
	GUEST_SYNC(SYNC_STAY);
	GUEST_DONE();
}

/* Kick vCPU 0 for another vCPU, when it is halted. */
static void guest_kick(u32 vcpu)
{
	sti();
	WRITE_ONCE(shared[vcpu].in, true);
	while (!READ_ONCE(shared[vcpu].leave)) {
		if (!READ_ONCE(kick_wanted))
			continue;
		GUEST_SYNC(SYNC_WAIT_FOR_HALT);
		/* First, as who wanted it may want the next one right after it. */
		WRITE_ONCE(kick_wanted, false);
		kvm_hypercall(KVM_HC_KICK_CPU, 0, 0, 0, 0);
	}
	GUEST_DONE();
}

/* Have vCPU 0 kicked, spin until it ran, and again. */
static void guest_want_kick(u32 vcpu)
{
	u32 wakes;

	sti();
	WRITE_ONCE(shared[vcpu].in, true);
	while (!READ_ONCE(shared[vcpu].leave)) {
		wakes = READ_ONCE(shared[0].wakes);
		WRITE_ONCE(kick_wanted, true);
		while (READ_ONCE(kick_wanted) && !READ_ONCE(shared[vcpu].leave))
			barrier();
		while (READ_ONCE(shared[0].wakes) == wakes &&
		       !READ_ONCE(shared[vcpu].leave))
			cpu_relax();
	}
	GUEST_DONE();
}

static void guest_contend(u32 vcpu)
{
	int i;

	sti();
	/* vCPU 0 has the lock at first.  As it is fair, all stay in the queue. */
	if (!vcpu) {
		while (READ_ONCE(lock.next) < nr_contenders)
			barrier();
		guest_lock_release(&lock);
	}
	for (i = 0; i < NR_ROUNDS; i++) {
		guest_lock_acquire(&lock, vcpu, true);
		nr_acquired++;
		guest_lock_release(&lock);
	}
	GUEST_DONE();
}

/*
 * Spin while vCPU 0 is halted, so that KVM notices that it does not wait; then
 * wake it up, spin until it ran, and again.
 */
static void guest_interrupt(u32 vcpu)
{
	u32 wakes;
	int i;

	x2apic_enable();
	sti();
	WRITE_ONCE(shared[vcpu].in, true);
	while (!READ_ONCE(shared[vcpu].leave)) {
		for (i = 0; i < SPINS; i++)
			cpu_relax();
		wakes = READ_ONCE(shared[0].wakes);
		x2apic_write_reg(APIC_ICR, APIC_DEST_PHYSICAL | APIC_DM_FIXED |
					   WAKE_VECTOR);
		while (READ_ONCE(shared[0].wakes) == wakes &&
		       !READ_ONCE(shared[vcpu].leave))
			cpu_relax();
	}
	GUEST_DONE();
}

static void guest_sched_yield(u32 vcpu)
{
	kvm_hypercall(KVM_HC_SCHED_YIELD, 0, 0, 0, 0);		/* preempted */
	kvm_hypercall(KVM_HC_SCHED_YIELD, 1, 0, 0, 0);		/* halted */
	kvm_hypercall(KVM_HC_SCHED_YIELD, vcpu, 0, 0, 0);	/* self */
	kvm_hypercall(KVM_HC_SCHED_YIELD, 200, 0, 0, 0);	/* absent */
	kvm_hypercall(KVM_HC_SCHED_YIELD, -1ul, 0, 0, 0);	/* absurd */
	GUEST_DONE();
}

/*
 * Take turns, in any order, halted with interrupts disabled while it is another
 * one's: nothing but a kick wakes this vCPU up.  One that comes before the HLT is
 * not lost.
 */
static void guest_take_turns(u32 vcpu)
{
	u32 random = vcpu + 1, next, i;

	x2apic_enable();
	for (;;) {
		while (READ_ONCE(turn) != vcpu && READ_ONCE(nr_turns) < max_turns)
			asm volatile("hlt");
		if (nr_turns == max_turns)
			break;

		/* The next one may be on its way to HLT, or already halted. */
		random = random * 1103515245 + 12345;
		for (i = 0; i < random >> 24; i++)
			barrier();

		next = vcpu + 1 + (random >> 16) % (nr_contenders - 1);
		next %= nr_contenders;
		WRITE_ONCE(nr_turns, nr_turns + 1);
		WRITE_ONCE(turn, next);
		kvm_hypercall(KVM_HC_KICK_CPU, 0, next, 0, 0);
	}
	/* Who leaves tells the next one. */
	kvm_hypercall(KVM_HC_KICK_CPU, 0, (vcpu + 1) % nr_contenders, 0, 0);
	GUEST_DONE();
}

/* What guests of other hypervisors do instead of PAUSE, or after many of them. */

static void guest_hyperv_spin_wait(u32 vcpu)
{
	int i;

	wrmsr(HV_X64_MSR_GUEST_OS_ID, HYPERV_LINUX_OS_ID);
	for (i = 0; i < NR_HYPERCALLS; i++)
		hyperv_hypercall(HVCALL_NOTIFY_LONG_SPIN_WAIT |
				 HV_HYPERCALL_FAST_BIT, SPINS, 0);
	GUEST_DONE();
}

static void guest_xen_yield(u32 vcpu)
{
	u64 ret;
	int i;

	for (i = 0; i < NR_HYPERCALLS; i++) {
		asm volatile("vmcall" : "=a"(ret)
			     : "a"(XEN_SCHED_OP), "D"(XEN_SCHEDOP_YIELD)
			     : "rsi", "memory");
		GUEST_ASSERT_EQ(ret, 0);
	}
	GUEST_DONE();
}

/* A vCPU and the thread that runs it. */
struct actor {
	struct kvm_vcpu *vcpu;
	struct shared *shared;
	struct actor *first;
	pthread_t thread;
	pid_t tid;
	int cpu;
	int policy;
	int nice;
	bool pinned;		/* to cpu */
	bool user;
	bool signalled;		/* Runs on after a signal. */
	bool started;
};

static __thread struct kvm_run *interrupted_run;

/* Also if it comes before the vCPU is run. */
static void leave_run(int sig)
{
	interrupted_run->immediate_exit = 1;
}

static void wait_until_blocked(struct actor *a, bool *leave)
{
	while (!vcpu_get_stat(a->vcpu, blocking) && !(leave && READ_ONCE(*leave)))
		sched_yield();
}

static void *run_actor(void *arg)
{
	struct actor *a = arg;
	struct sched_param param = {
		.sched_priority = a->policy == SCHED_FIFO ? 1 : 0,
	};
	struct ucall uc;

	interrupted_run = a->vcpu->run;
	if (a->pinned)
		pin_self_to_cpu(a->cpu);
	TEST_ASSERT(!sched_setscheduler(0, a->policy, &param),
		    "Failed to set scheduling policy %d", a->policy);
	TEST_ASSERT(!setpriority(PRIO_PROCESS, kvm_gettid(), a->nice),
		    "Failed to set nice level %d", a->nice);
	WRITE_ONCE(a->tid, kvm_gettid());

	for (;;) {
		if (__vcpu_run(a->vcpu)) {
			TEST_ASSERT(errno == EINTR && (a->user || a->signalled),
				    "KVM_RUN failed on vCPU %u", a->vcpu->id);
			if (a->user)
				return NULL;
			a->vcpu->run->immediate_exit = 0;
			continue;
		}
		switch (get_ucall(a->vcpu, &uc)) {
		case UCALL_SYNC:
			if (uc.args[1] == SYNC_WAIT_FOR_HALT) {
				wait_until_blocked(a->first, &a->shared->leave);
				break;
			}
			WRITE_ONCE(a->shared->in, true);
			while (!READ_ONCE(a->shared->leave))
				barrier();
			break;
		case UCALL_DONE:
			return NULL;
		case UCALL_ABORT:
			REPORT_GUEST_ASSERT(uc);
			break;
		default:
			TEST_FAIL("vCPU %u: unexpected exit: %u (%s)", a->vcpu->id,
				  a->vcpu->run->exit_reason,
				  exit_reason_str(a->vcpu->run->exit_reason));
		}
	}
}

struct scene {
	struct kvm_vm *vm;
	struct actor actors[MAX_VCPUS];
	int nr_actors;
	int cpus[2];		/* The second is -1 if there is but one. */
	struct yield_trace trace;
};

FIXTURE(directed_yield)
{
	struct scene scene;
};

static bool set_cpus(int cpus[2])
{
	cpu_set_t allowed;
	int i, n = 0;

	kvm_sched_getaffinity(0, sizeof(allowed), &allowed);
	for (i = 0; i < CPU_SETSIZE && n < 2; i++) {
		if (CPU_ISSET(i, &allowed))
			cpus[n++] = i;
	}
	return n == 2;
}

static void set_scene(struct scene *s)
{
	if (!set_cpus(s->cpus))
		s->cpus[1] = -1;
	s->vm = vm_create(MAX_VCPUS);
	vm_install_exception_handler(s->vm, WAKE_VECTOR, wake_handler);
}

static void clear_scene(struct scene *s)
{
	yield_trace_free(&s->trace);
	if (s->vm)
		kvm_vm_free(s->vm);
}

FIXTURE_SETUP(directed_yield)
{
	if (!kvm_has_pause_exits())
		SKIP(return, "No exits on PAUSE: not supported, or disabled by module parameter");
	if (yield_trace_unavailable())
		SKIP(return, "%s", yield_trace_unavailable());
	set_scene(&self->scene);
}

FIXTURE_TEARDOWN(directed_yield)
{
	clear_scene(&self->scene);
}

FIXTURE(halt_yield)
{
	struct scene scene;
};

FIXTURE_SETUP(halt_yield)
{
	if (yield_trace_unavailable())
		SKIP(return, "%s", yield_trace_unavailable());
	set_scene(&self->scene);
}

FIXTURE_TEARDOWN(halt_yield)
{
	clear_scene(&self->scene);
}

static struct actor *add(struct scene *s, void *role)
{
	struct actor *a = &s->actors[s->nr_actors];

	TEST_ASSERT(s->nr_actors < MAX_VCPUS, "Too many vCPUs");
	a->vcpu = vm_vcpu_add(s->vm, s->nr_actors, role);
	a->shared = addr_gva2hva(s->vm, (gva_t)&shared[s->nr_actors]);
	a->first = &s->actors[0];
	a->cpu = s->cpus[0];
	a->pinned = true;
	vcpu_args_set(a->vcpu, 1, (u64)s->nr_actors);
	s->nr_actors++;
	return a;
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

static void make_user(struct actor *a)
{
	struct kvm_vm *vm = a->vcpu->vm;
	struct kvm_sregs sregs;
	struct kvm_regs regs;

	map_for_user(vm, vm->mmu.pgd, vm->mmu.pgtable_levels);

	vcpu_sregs_get(a->vcpu, &sregs);
	sregs.cs.selector |= 3;
	sregs.cs.dpl = 3;
	sregs.ss = sregs.ds;
	sregs.ss.selector |= 3;
	sregs.ss.dpl = 3;
	vcpu_sregs_set(a->vcpu, &sregs);

	vcpu_regs_get(a->vcpu, &regs);
	regs.rflags |= X86_EFLAGS_IF;
	vcpu_regs_set(a->vcpu, &regs);

	/* It runs until a signal makes KVM_RUN return. */
	a->user = true;
	signal(SIGUSR1, leave_run);
}

static void start(struct actor *a)
{
	kvm_pthread_create(&a->thread, NULL, run_actor, a);
	a->started = true;
	while (!READ_ONCE(a->tid))
		sched_yield();
}

/*
 * Return when the vCPU is where its role wants it.  If this runs on the vCPU's
 * CPU, then the vCPU does not.
 */
static void start_and_wait(struct actor *a)
{
	start(a);
	while (!READ_ONCE(a->shared->in))
		sched_yield();
}

/* Of no effect on a vCPU that did not enable its APIC. */
static void send_msi(struct actor *a, u32 data)
{
	struct kvm_msi msi = {
		.address_lo = 0xfee00000 | a->vcpu->id << 12,
		.data = data,
	};

	__vm_ioctl(a->vcpu->vm, KVM_SIGNAL_MSI, &msi);
}

static void interrupt(struct actor *a)
{
	send_msi(a, WAKE_VECTOR);
}

/*
 * What KVM_HC_KICK_CPU does, except that nobody yields to the kicked vCPU: KVM
 * delivers a kick as an interrupt in a mode that APICs do not use.
 */
static void kick(struct actor *a)
{
	send_msi(a, APIC_DM_REMRD);
}

static void join(struct actor *a)
{
	kvm_pthread_join(a->thread, NULL);
	a->started = false;
}

/* Let all vCPUs return that still run. */
static void leave_all(struct scene *s)
{
	struct actor *a;
	int i;

	for (i = 0; i < s->nr_actors; i++)
		WRITE_ONCE(s->actors[i].shared->leave, true);
	for (i = 0; i < s->nr_actors; i++) {
		a = &s->actors[i];
		if (!a->started)
			continue;
		if (a->user)
			pthread_kill(a->thread, SIGUSR1);
		else
			interrupt(a);
		join(a);
	}
}

/* Until @spinner yielded @nr times, or has had @max_exits and won't. */
static void __wait_for_yields(struct actor *spinner, u64 nr, u64 max_exits)
{
	while (vcpu_get_stat(spinner->vcpu, spin_yield_successful) < nr &&
	       vcpu_get_stat(spinner->vcpu, pause_loop_exits) < max_exits)
		sched_yield();
}

static void wait_for_yields(struct actor *spinner, u64 nr)
{
	__wait_for_yields(spinner, nr, MAX_EXITS);
}

static bool is_spin(struct yield_trace_event *e, struct actor *a)
{
	return e->type == YIELD_TRACE_YIELD && e->pid == a->tid &&
	       !strcmp(e->reason, "spin");
}

struct totals {
	u64 decisions;
	u64 attempted;
	u64 yielded;
};

static struct totals sum_up(struct yield_trace *trace, struct actor *spinner)
{
	struct yield_trace_event *e;
	struct totals t = {};
	bool tried = false;

	for (e = trace->events; e < trace->end; e++) {
		if (!is_spin(e, spinner))
			continue;
		TEST_ASSERT_EQ(e->vcpu_id, spinner->vcpu->id);
		TEST_ASSERT(e->target_id != e->vcpu_id, "A yield to self");
		if (e->target_id != -1)
			tried = true;
		if (e->target_id != -1 && e->result <= 0)
			continue;

		/* The end of a decision. */
		t.decisions++;
		t.attempted += tried;
		t.yielded += e->result > 0;
		tried = false;
	}
	TEST_ASSERT(!tried, "A decision without an end");
	return t;
}

/* What @spinner decided, by the trace; asserts that its stats agree. */
static struct totals get_totals(struct yield_trace *trace, struct actor *spinner)
{
	struct totals t = sum_up(trace, spinner);

	pr_info("%lu exits, %lu tried to yield, %lu did\n",
		t.decisions, t.attempted, t.yielded);
	TEST_ASSERT_EQ(t.decisions,
		       vcpu_get_stat(spinner->vcpu, pause_loop_exits));
	TEST_ASSERT_EQ(t.attempted,
		       vcpu_get_stat(spinner->vcpu, spin_yield_attempted));
	TEST_ASSERT_EQ(t.yielded,
		       vcpu_get_stat(spinner->vcpu, spin_yield_successful));
	return t;
}

/*
 * The vCPU that was preempted in kernel mode is the one to yield to, and none
 * that is halted, or in userspace, or runs at CPL 3, or belongs to another VM.
 */
TEST_F_TIMEOUT(directed_yield, preempted_holder, 120)
{
	struct scene *s = &self->scene;
	struct actor *halted, *userspace, *user, *holder, *spinner;
	struct scene other = { .cpus = { s->cpus[0], -1 } };
	struct yield_trace_event *e;
	struct actor *stranger;
	struct totals t;

	halted = add(s, guest_halt);
	userspace = add(s, guest_to_userspace);
	user = add(s, guest_busy_user);
	holder = add(s, guest_busy);
	spinner = add(s, guest_spin);
	make_user(user);

	other.vm = vm_create(1);
	stranger = add(&other, guest_busy);

	start_and_wait(halted);
	wait_until_blocked(halted, NULL);
	start_and_wait(userspace);
	start_and_wait(user);
	start_and_wait(stranger);
	start_and_wait(holder);

	yield_trace_start(&s->trace, 0);
	start(spinner);
	wait_for_yields(spinner, 5);
	WRITE_ONCE(spinner->shared->leave, true);
	join(spinner);
	yield_trace_stop(&s->trace);

	leave_all(s);
	leave_all(&other);
	kvm_vm_free(other.vm);

	t = get_totals(&s->trace, spinner);
	ASSERT_GE(t.yielded, 5);
	for (e = s->trace.events; e < s->trace.end; e++) {
		if (!is_spin(e, spinner) || e->target_id == -1)
			continue;
		ASSERT_EQ(e->target_id, holder->vcpu->id);
		ASSERT_EQ(e->target_pid, holder->tid);
	}
}

/* With nobody but a vCPU at CPL 3 to yield to, a spinner at CPL 0 does not. */
TEST_F_TIMEOUT(directed_yield, not_to_user_mode, 120)
{
	struct scene *s = &self->scene;
	struct actor *user, *spinner;
	struct totals t;

	user = add(s, guest_busy_user);
	spinner = add(s, guest_spin_n);
	make_user(user);

	start_and_wait(user);
	yield_trace_start(&s->trace, 0);
	start(spinner);
	join(spinner);
	yield_trace_stop(&s->trace);
	leave_all(s);

	t = get_totals(&s->trace, spinner);
	ASSERT_GT(t.decisions, 0);
	ASSERT_EQ(t.attempted, 0);
}

static u64 nr_preemptions(struct actor *a)
{
	char path[64], line[128];
	u64 nr = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/status", a->tid);
	f = fopen(path, "r");
	TEST_ASSERT(f, "Failed to open %s", path);
	while (fgets(line, sizeof(line), f))
		sscanf(line, "nonvoluntary_ctxt_switches: %lu", &nr);
	fclose(f);
	return nr;
}

/* A vCPU that runs is not tried, unless something else preempted it. */
TEST_F_TIMEOUT(directed_yield, not_to_running, 120)
{
	struct scene *s = &self->scene;
	struct actor *running, *spinner;
	struct yield_trace_event *e;
	u64 nr, nr_tries = 0;
	struct totals t;
	u32 rounds;

	if (s->cpus[1] < 0)
		SKIP(return, "Needs 2 CPUs");

	running = add(s, guest_busy);
	spinner = add(s, guest_spin_n);
	running->cpu = s->cpus[1];

	pin_self_to_cpu(s->cpus[0]);
	start_and_wait(running);
	yield_trace_start(&s->trace, 0);
	/* What preempted it until now is over when it has run again. */
	nr = nr_preemptions(running);
	rounds = READ_ONCE(running->shared->rounds);
	while (READ_ONCE(running->shared->rounds) == rounds)
		sched_yield();
	start(spinner);
	join(spinner);
	yield_trace_stop(&s->trace);
	nr = nr_preemptions(running) - nr;
	leave_all(s);

	t = get_totals(&s->trace, spinner);
	ASSERT_GT(t.decisions, 0);
	for (e = s->trace.events; e < s->trace.end; e++)
		nr_tries += is_spin(e, spinner) && e->target_id != -1;
	TH_LOG("%lu tries, %lu preemptions", nr_tries, nr);
	ASSERT_TRUE(nr || !nr_tries);
}

/*
 * A halted vCPU that was woken up waits for a CPU like one that was preempted.
 * As SCHED_BATCH, it does not preempt the spinner at the wake-up.
 */
TEST_F_TIMEOUT(directed_yield, woken_up, 120)
{
	struct scene *s = &self->scene;
	struct actor *halted, *spinner;
	struct yield_trace_event *e;
	struct totals t;

	halted = add(s, guest_halt);
	halted->policy = SCHED_BATCH;
	spinner = add(s, guest_interrupt);

	start_and_wait(halted);
	wait_until_blocked(halted, NULL);
	yield_trace_start(&s->trace, 0);
	start(spinner);
	/* It also spins while there is nobody to yield to. */
	__wait_for_yields(spinner, 5, 20 * SPINS);
	WRITE_ONCE(spinner->shared->leave, true);
	join(spinner);
	yield_trace_stop(&s->trace);
	leave_all(s);

	t = get_totals(&s->trace, spinner);
	ASSERT_GE(t.yielded, 5);
	for (e = s->trace.events; e < s->trace.end; e++) {
		if (!is_spin(e, spinner) || e->target_id == -1)
			continue;
		ASSERT_EQ(e->target_pid, halted->tid);
	}
}

/* Equal candidates take turns. */
TEST_F_TIMEOUT(directed_yield, round_robin, 120)
{
	struct scene *s = &self->scene;
	int i, expected = -1, nr[MAX_VCPUS] = {};
	struct yield_trace_event *e;
	struct actor *spinner;
	struct totals t;

	/* The spinner in the middle. */
	for (i = 0; i < 5; i++)
		add(s, i == 2 ? guest_spin : guest_busy);
	spinner = &s->actors[2];
	for (i = 0; i < 5; i++) {
		if (i != 2)
			start_and_wait(&s->actors[i]);
	}

	yield_trace_start(&s->trace, 0);
	start(spinner);
	wait_for_yields(spinner, 16);
	WRITE_ONCE(spinner->shared->leave, true);
	join(spinner);
	yield_trace_stop(&s->trace);
	leave_all(s);

	t = get_totals(&s->trace, spinner);
	ASSERT_GE(t.yielded, 16);
	for (e = s->trace.events; e < s->trace.end; e++) {
		if (!is_spin(e, spinner) || e->target_id == -1)
			continue;
		/* All of them wait for the CPU that the spinner runs on. */
		ASSERT_GT(e->result, 0);
		if (expected != -1)
			ASSERT_EQ(e->target_id, expected);
		nr[e->target_id]++;
		expected = (e->target_id + 1) % 5;
		if (expected == 2)
			expected = 3;
	}
	for (i = 0; i < 5; i++)
		ASSERT_LE(abs(nr[i] - nr[i == 2 ? 0 : 4]), i == 2 ? nr[0] : 1);
}

/*
 * A vCPU that was preempted while it handled its own exit on PAUSE is passed
 * over once, and may be yielded to the next time if it did not run since.
 */
TEST_F_TIMEOUT(directed_yield, other_spinner, 120)
{
	struct scene *s = &self->scene;
	int i, nr_passed_over = 0, nr_checked = 0;
	struct yield_trace_event *e, *last[2] = {};
	struct totals t[2];

	add(s, guest_spin);
	add(s, guest_spin);

	yield_trace_start(&s->trace, BIT(YIELD_TRACE_SWITCH));
	start_and_wait(&s->actors[0]);
	start_and_wait(&s->actors[1]);
	wait_for_yields(&s->actors[0], 20);
	for (i = 0; i < 2; i++)
		WRITE_ONCE(s->actors[i].shared->leave, true);
	for (i = 0; i < 2; i++)
		join(&s->actors[i]);
	yield_trace_stop(&s->trace);

	for (i = 0; i < 2; i++)
		t[i] = get_totals(&s->trace, &s->actors[i]);
	ASSERT_GE(t[0].yielded, 20);

	for (e = s->trace.events; e < s->trace.end; e++) {
		for (i = 0; i < 2; i++) {
			struct actor *a = &s->actors[i];
			struct actor *other = &s->actors[!i];

			/* If the other one runs, all is open again. */
			if (e->type == YIELD_TRACE_SWITCH &&
			    e->next_pid == other->tid)
				last[i] = NULL;
			if (!is_spin(e, a))
				continue;
			if (last[i] && e->visited) {
				nr_checked++;
				ASSERT_EQ(e->target_id, other->vcpu->id);
			}
			last[i] = NULL;
			if (e->target_id == -1 && e->visited == 1) {
				nr_passed_over++;
				last[i] = e;
			}
		}
	}
	TH_LOG("%d times passed over, %d times followed by a try",
	       nr_passed_over, nr_checked);
	ASSERT_GT(nr_passed_over, 0);
}

static bool may_use_fifo(void)
{
	struct sched_param fifo = { .sched_priority = 1 }, other = {};

	return !sched_setscheduler(0, SCHED_FIFO, &fifo) &&
	       !sched_setscheduler(0, SCHED_OTHER, &other);
}

/*
 * Targets that are refused cost a bounded number of tries, and yet each of them
 * has its turn.  A SCHED_FIFO task cannot yield to a SCHED_OTHER one.
 */
TEST_F_TIMEOUT(directed_yield, refused, 120)
{
	struct scene *s = &self->scene;
	int i, nr_tries = 0, max_tries = 0, nr[MAX_VCPUS] = {};
	const int nr_targets = 5;
	struct yield_trace_event *e;
	struct actor *spinner;
	struct totals t;

	if (!may_use_fifo())
		SKIP(return, "SCHED_FIFO is not permitted");

	for (i = 0; i < nr_targets; i++)
		add(s, guest_busy);
	spinner = add(s, guest_spin);
	spinner->policy = SCHED_FIFO;

	for (i = 0; i < nr_targets; i++)
		start_and_wait(&s->actors[i]);
	yield_trace_start(&s->trace, 0);
	start(spinner);
	/* Twice what it takes to try each of them. */
	while (vcpu_get_stat(spinner->vcpu, pause_loop_exits) < 4)
		sched_yield();
	WRITE_ONCE(spinner->shared->leave, true);
	join(spinner);
	yield_trace_stop(&s->trace);
	leave_all(s);

	t = get_totals(&s->trace, spinner);
	ASSERT_EQ(t.yielded, 0);
	for (e = s->trace.events; e < s->trace.end; e++) {
		if (!is_spin(e, spinner))
			continue;
		if (e->target_id == -1) {
			max_tries = max(max_tries, nr_tries);
			nr_tries = 0;
			continue;
		}
		ASSERT_EQ(e->result, 0);
		nr[e->target_id]++;
		nr_tries++;
	}
	TH_LOG("at most %d tries in a decision", max_tries);
	ASSERT_LE(max_tries, 3);
	for (i = 0; i < nr_targets; i++)
		ASSERT_GT(nr[i], 0);
}

/*
 * A vCPU that was kicked and waits for a CPU comes before all others.
 *
 * A decision counts if the kicked vCPU waited all the time from the exit until
 * the spinner was switched away from, for that is the yield.
 */
TEST_F_TIMEOUT(directed_yield, kicked_first, 120)
{
	struct scene *s = &self->scene;
	bool woken = false, waits = false, at_exit = false, at_yield = false;
	struct actor *kicked, *kicker, *spinner;
	struct yield_trace_event *e;
	int i, nr_first = 0;
	struct totals t;

	if (s->cpus[1] < 0)
		SKIP(return, "Needs 2 CPUs");

	/* All but the spinner are nice, so that it runs while they wait. */
	kicked = add(s, guest_halt);
	kicked->policy = SCHED_BATCH;
	kicked->nice = 19;
	for (i = 0; i < 3; i++)
		add(s, guest_busy)->nice = 19;
	spinner = add(s, guest_want_kick);
	/* Alone on its CPU, so that the kick itself does not yield. */
	kicker = add(s, guest_kick);
	kicker->cpu = s->cpus[1];

	pin_self_to_cpu(s->cpus[0]);
	start_and_wait(kicked);
	for (i = 1; i <= 3; i++)
		start_and_wait(&s->actors[i]);

	yield_trace_start(&s->trace, BIT(YIELD_TRACE_SWITCH) |
				     BIT(YIELD_TRACE_WAKEUP) |
				     BIT(YIELD_TRACE_EXIT));
	start_and_wait(kicker);
	start_and_wait(spinner);
	wait_for_yields(spinner, 30);
	WRITE_ONCE(kicker->shared->leave, true);
	WRITE_ONCE(spinner->shared->leave, true);
	join(spinner);
	yield_trace_stop(&s->trace);
	leave_all(s);

	t = get_totals(&s->trace, spinner);
	for (e = s->trace.events; e < s->trace.end; e++) {
		switch (e->type) {
		case YIELD_TRACE_WAKEUP:
			if (e->pid == kicker->tid && e->next_pid == kicked->tid)
				woken = true;
			break;
		case YIELD_TRACE_SWITCH:
			if (e->next_pid == kicked->tid) {
				woken = false;
				waits = false;
				at_exit = false;
			}
			if (e->pid == spinner->tid)
				at_yield = at_exit;
			break;
		case YIELD_TRACE_EXIT:
			if (e->pid == spinner->tid)
				at_exit = waits;
			break;
		case YIELD_TRACE_YIELD:
			/* The kick is done when its own yield was decided. */
			if (e->pid == kicker->tid && !strcmp(e->reason, "kick"))
				waits = woken;
			if (is_spin(e, spinner) && e->result > 0 && at_yield) {
				ASSERT_EQ(e->target_id, kicked->vcpu->id);
				nr_first++;
				at_yield = false;
			}
			break;
		default:
			break;
		}
	}
	TH_LOG("%d of %lu yields to a kicked vCPU", nr_first, t.yielded);
	ASSERT_GT(nr_first, 0);
}

/* What the hypercall finds, and that its stats count that. */
TEST_F_TIMEOUT(directed_yield, sched_yield, 120)
{
	struct scene *s = &self->scene;
	struct { int target, yields; unsigned int visited; } expected[] = {
		{ 0, true, 1 }, { -1, false, 1 }, { -1, false, 0 },
		{ -1, false, 0 }, { -1, false, 0 },
	};
	struct actor *preempted, *halted, *yielder;
	struct yield_trace_event *e;
	int n = 0;

	preempted = add(s, guest_busy);
	halted = add(s, guest_halt);
	yielder = add(s, guest_sched_yield);

	start_and_wait(halted);
	wait_until_blocked(halted, NULL);
	start_and_wait(preempted);
	yield_trace_start(&s->trace, 0);
	start(yielder);
	join(yielder);
	yield_trace_stop(&s->trace);
	leave_all(s);

	for (e = s->trace.events; e < s->trace.end; e++) {
		if (e->pid != yielder->tid)
			continue;
		ASSERT_LT(n, ARRAY_SIZE(expected));
		ASSERT_STREQ(e->reason, "sched_yield");
		ASSERT_EQ(e->target_id, expected[n].target);
		ASSERT_EQ(e->result > 0, expected[n].yields);
		ASSERT_EQ(e->visited, expected[n].visited);
		n++;
	}
	ASSERT_EQ(n, ARRAY_SIZE(expected));
	ASSERT_EQ(vcpu_get_stat(yielder->vcpu, directed_yield_attempted), n);
	ASSERT_EQ(vcpu_get_stat(yielder->vcpu, directed_yield_successful), 1);
}

static void contend(int cpus[2], int nr_vcpus, bool pinned, bool nice)
{
	struct scene *s = calloc(1, sizeof(*s));
	struct totals t, sum = {};
	struct yield_trace_event *e;
	int i, j, nr_cpus;
	struct actor *a;

	TEST_ASSERT(s, "Out of memory");
	nr_cpus = cpus[1] < 0 ? 1 : 2;
	s->cpus[0] = cpus[0];
	s->cpus[1] = cpus[1];
	s->vm = vm_create(nr_vcpus);
	for (i = 0; i < nr_vcpus; i++) {
		a = add(s, guest_contend);
		a->cpu = cpus[i % nr_cpus];
		a->pinned = pinned;
		a->nice = nice && i % 2 ? 10 : 0;
	}

	lock = (struct guest_lock) { .next = 1, .owner = 0 };
	sync_global_to_guest(s->vm, lock);
	nr_contenders = nr_vcpus;
	sync_global_to_guest(s->vm, nr_contenders);
	nr_acquired = 0;
	sync_global_to_guest(s->vm, nr_acquired);

	yield_trace_start(&s->trace, 0);
	for (i = 0; i < nr_vcpus; i++)
		start(&s->actors[i]);
	for (i = 0; i < nr_vcpus; i++)
		join(&s->actors[i]);
	yield_trace_stop(&s->trace);

	sync_global_from_guest(s->vm, nr_acquired);
	TEST_ASSERT_EQ(nr_acquired, nr_vcpus * NR_ROUNDS);

	for (i = 0; i < nr_vcpus; i++) {
		a = &s->actors[i];
		t = get_totals(&s->trace, a);
		sum.decisions += t.decisions;
		sum.yielded += t.yielded;

		/* Whomever it tried belongs to this VM. */
		for (e = s->trace.events; e < s->trace.end; e++) {
			if (!is_spin(e, a) || e->target_id == -1)
				continue;
			TEST_ASSERT(e->target_id < nr_vcpus,
				    "No vCPU %d", e->target_id);
			/* No task: it is about to be run the first time. */
			j = e->target_id;
			if (e->target_pid)
				TEST_ASSERT_EQ(e->target_pid, s->actors[j].tid);
			else
				TEST_ASSERT_EQ(e->result, 0);
		}
	}
	pr_info("%d vCPUs on %d CPUs%s%s: %lu exits, %lu yields\n", nr_vcpus,
		nr_cpus, pinned ? ", pinned" : "", nice ? ", half of them nice" : "",
		sum.decisions, sum.yielded);
	if (nr_vcpus > nr_cpus && pinned)
		TEST_ASSERT(sum.yielded, "No yields in an overcommitted guest");

	yield_trace_free(&s->trace);
	kvm_vm_free(s->vm);
	free(s);
}

/* Any ratio of vCPUs to CPUs, pinned and not, of equal weight and not. */
TEST_F_TIMEOUT(directed_yield, overcommit, 300)
{
	int *cpus = self->scene.cpus, ratio, how;

	for (ratio = 1; ratio <= 4; ratio++) {
		for (how = 0; how < 4; how++)
			contend(cpus, ratio * (cpus[1] < 0 ? 1 : 2), how & 1,
				how & 2);
	}
}

/* Yields that a guest asks for without PAUSE are decided in the same way. */
static void check_hypercall(struct scene *s, struct actor *holder,
			    struct actor *spinner)
{
	struct yield_trace_event *e;
	struct totals t;

	start_and_wait(holder);
	yield_trace_start(&s->trace, 0);
	start(spinner);
	join(spinner);
	yield_trace_stop(&s->trace);
	leave_all(s);

	t = sum_up(&s->trace, spinner);
	TEST_ASSERT_EQ(t.decisions, NR_HYPERCALLS);
	TEST_ASSERT_EQ(t.yielded, NR_HYPERCALLS);
	TEST_ASSERT_EQ(vcpu_get_stat(spinner->vcpu, spin_yield_successful),
		       NR_HYPERCALLS);
	TEST_ASSERT_EQ(vcpu_get_stat(spinner->vcpu, pause_loop_exits), 0);
	for (e = s->trace.events; e < s->trace.end; e++) {
		if (is_spin(e, spinner) && e->target_id != -1)
			TEST_ASSERT_EQ(e->target_pid, holder->tid);
	}
}

TEST_F_TIMEOUT(directed_yield, hyperv_spin_wait, 120)
{
	struct scene *s = &self->scene;
	struct actor *holder, *spinner;

	if (!kvm_has_cap(KVM_CAP_HYPERV_CPUID))
		SKIP(return, "KVM does not emulate Hyper-V");

	holder = add(s, guest_busy);
	spinner = add(s, guest_hyperv_spin_wait);
	vcpu_set_hv_cpuid(spinner->vcpu);
	check_hypercall(s, holder, spinner);
}

TEST_F_TIMEOUT(directed_yield, xen_yield, 120)
{
	struct kvm_xen_hvm_config config = {
		.flags = KVM_XEN_HVM_CONFIG_INTERCEPT_HCALL,
		.msr = XEN_HYPERCALL_MSR,
	};
	struct scene *s = &self->scene;
	struct actor *holder, *spinner;

	if (!(kvm_check_cap(KVM_CAP_XEN_HVM) & KVM_XEN_HVM_CONFIG_INTERCEPT_HCALL))
		SKIP(return, "KVM does not handle Xen hypercalls");

	vm_ioctl(s->vm, KVM_XEN_HVM_CONFIG, &config);
	holder = add(s, guest_busy);
	spinner = add(s, guest_xen_yield);
	check_hypercall(s, holder, spinner);
}

/* What a decision costs depends on how many vCPUs wait, not on how many exist. */
TEST_F_TIMEOUT(directed_yield, visits_only_waiting, 120)
{
	struct scene *s = &self->scene;
	struct actor *user[2], *spinner;
	struct yield_trace_event *e;
	struct totals t;
	int i;

	kvm_vm_free(s->vm);
	s->vm = vm_create(NR_IDLE_VCPUS + 3);
	user[0] = add(s, guest_busy_user);
	spinner = add(s, guest_spin_n);
	for (i = 2; i < NR_IDLE_VCPUS; i++)
		__vm_vcpu_add(s->vm, i);
	/* The last one: MAX_VCPUS bounds the guest's, not KVM's indices. */
	user[1] = &s->actors[2];
	user[1]->vcpu = vm_vcpu_add(s->vm, NR_IDLE_VCPUS, guest_busy_user);
	user[1]->shared = addr_gva2hva(s->vm, (gva_t)&shared[2]);
	user[1]->cpu = s->cpus[0];
	user[1]->pinned = true;
	vcpu_args_set(user[1]->vcpu, 1, 2ul);
	s->nr_actors = 3;
	make_user(user[0]);
	make_user(user[1]);

	start_and_wait(user[0]);
	start_and_wait(user[1]);
	yield_trace_start(&s->trace, 0);
	start(spinner);
	join(spinner);
	yield_trace_stop(&s->trace);
	leave_all(s);

	t = get_totals(&s->trace, spinner);
	ASSERT_GT(t.decisions, 0);
	ASSERT_EQ(t.attempted, 0);
	for (e = s->trace.events; e < s->trace.end; e++) {
		if (is_spin(e, spinner))
			ASSERT_EQ(e->visited, 2);
	}
}

static bool is_halt(struct yield_trace_event *e, struct actor *a)
{
	return e->type == YIELD_TRACE_YIELD && e->pid == a->tid &&
	       !strcmp(e->reason, "halt");
}

/* The same as get_totals() for what @halter did before it blocked. */
static struct totals get_halt_totals(struct yield_trace *trace,
				     struct actor *halter)
{
	struct yield_trace_event *e;
	struct totals t = {};
	bool tried = false;

	for (e = trace->events; e < trace->end; e++) {
		if (!is_halt(e, halter))
			continue;
		TEST_ASSERT_EQ(e->vcpu_id, halter->vcpu->id);
		TEST_ASSERT(e->target_id != e->vcpu_id, "A yield to self");
		if (e->target_id != -1)
			tried = true;
		if (e->target_id != -1 && !e->result)
			continue;

		t.decisions++;
		t.attempted += tried;
		t.yielded += e->result > 0;
		tried = false;
	}
	TEST_ASSERT(!tried, "A decision without an end");

	pr_info("%lu halts with a kicked vCPU, %lu tried to nominate it, %lu did\n",
		t.decisions, t.attempted, t.yielded);
	TEST_ASSERT_EQ(t.attempted,
		       vcpu_get_stat(halter->vcpu, halt_yield_attempted));
	TEST_ASSERT_EQ(t.yielded,
		       vcpu_get_stat(halter->vcpu, halt_yield_successful));
	return t;
}

/*
 * Wake @target up with @wake, then the vCPU that halts again at once, @halter.
 * Return when both have run and are halted again.
 *
 * This runs on @halter's CPU, which has a higher priority than this thread.  So
 * it halts while @target still waits, usually; what follows is decided by what
 * the trace shows.
 */
static void wake_both(struct actor *target, void (*wake)(struct actor *),
		      struct actor *halter)
{
	u32 target_wakes, halter_wakes;

	wait_until_blocked(target, NULL);
	wait_until_blocked(halter, NULL);
	target_wakes = READ_ONCE(target->shared->wakes);
	halter_wakes = READ_ONCE(halter->shared->wakes);

	wake(target);
	interrupt(halter);

	while (READ_ONCE(target->shared->wakes) == target_wakes ||
	       READ_ONCE(halter->shared->wakes) == halter_wakes)
		sched_yield();
}

static struct actor *add_halter(struct scene *s)
{
	struct actor *a = add(s, guest_halt);

	a->nice = -20;
	return a;
}

/* Does not preempt who wakes it up. */
static struct actor *add_target(struct scene *s)
{
	struct actor *a = add(s, guest_halt);

	a->policy = SCHED_BATCH;
	return a;
}

#define NR_HALTS	20

/*
 * The vCPU that was kicked runs next, although others wait as well, and the
 * scheduler would rather have picked one of those.
 */
TEST_F_TIMEOUT(halt_yield, kicked_runs_next, 120)
{
	struct scene *s = &self->scene;
	struct actor *target, *halter;
	struct yield_trace_event *e;
	bool nominated = false;
	int i, nr_next = 0;
	struct totals t;

	target = add_target(s);
	halter = add_halter(s);
	/* Whose deadlines are earlier than that of the target. */
	for (i = 0; i < 8; i++)
		add(s, guest_busy)->nice = -15;

	pin_self_to_cpu(s->cpus[0]);
	for (i = 0; i < s->nr_actors; i++)
		start_and_wait(&s->actors[i]);

	yield_trace_start(&s->trace, BIT(YIELD_TRACE_SWITCH));
	for (i = 0; i < 10 * NR_HALTS; i++) {
		if (vcpu_get_stat(halter->vcpu, halt_yield_successful) == NR_HALTS)
			break;
		wake_both(target, kick, halter);
	}
	wait_until_blocked(halter, NULL);
	yield_trace_stop(&s->trace);

	t = get_halt_totals(&s->trace, halter);
	leave_all(s);

	ASSERT_GE(t.yielded, NR_HALTS);
	for (e = s->trace.events; e < s->trace.end; e++) {
		if (is_halt(e, halter) && e->target_id != -1) {
			ASSERT_EQ(e->target_id, target->vcpu->id);
			ASSERT_EQ(e->target_pid, target->tid);
			nominated = e->result;
		}
		if (e->type == YIELD_TRACE_SWITCH && e->pid == halter->tid) {
			nr_next += nominated && e->next_pid == target->tid;
			nominated = false;
		}
	}
	TH_LOG("%lu nominations, %d times it ran next", t.yielded, nr_next);
	/* Not always: not if it had more than its share of the CPU before. */
	ASSERT_GT(2 * nr_next, t.yielded);
}

/* One that was woken up by an interrupt owns no lock, for all KVM knows. */
TEST_F_TIMEOUT(halt_yield, not_to_interrupted, 120)
{
	struct scene *s = &self->scene;
	struct actor *target, *halter;
	struct yield_trace_event *e;
	int i;

	target = add_target(s);
	halter = add_halter(s);
	add(s, guest_busy);

	pin_self_to_cpu(s->cpus[0]);
	for (i = 0; i < s->nr_actors; i++)
		start_and_wait(&s->actors[i]);

	yield_trace_start(&s->trace, 0);
	for (i = 0; i < NR_HALTS; i++)
		wake_both(target, interrupt, halter);
	wait_until_blocked(halter, NULL);
	yield_trace_stop(&s->trace);

	get_halt_totals(&s->trace, halter);
	leave_all(s);

	for (e = s->trace.events; e < s->trace.end; e++)
		ASSERT_FALSE(is_halt(e, halter));
}

/*
 * One that waits for another CPU is seen and not tried, and gets that CPU
 * nevertheless: wake_both() waits for that.
 */
TEST_F_TIMEOUT(halt_yield, not_to_other_cpu, 120)
{
	struct scene *s = &self->scene;
	struct actor *target, *halter, *busy;
	struct totals t = {};
	int i;

	if (s->cpus[1] < 0)
		SKIP(return, "Needs 2 CPUs");

	target = add_target(s);
	target->cpu = s->cpus[1];
	halter = add_halter(s);
	busy = add(s, guest_busy);
	busy->cpu = s->cpus[1];

	pin_self_to_cpu(s->cpus[0]);
	for (i = 0; i < s->nr_actors; i++)
		start_and_wait(&s->actors[i]);

	yield_trace_start(&s->trace, 0);
	for (i = 0; i < NR_HALTS; i++)
		wake_both(target, kick, halter);
	wait_until_blocked(halter, NULL);
	yield_trace_stop(&s->trace);

	t = get_halt_totals(&s->trace, halter);
	leave_all(s);

	ASSERT_GT(t.decisions, 0);
	ASSERT_EQ(t.attempted, 0);
}

/* A kicked vCPU of another VM is none of its business. */
TEST_F_TIMEOUT(halt_yield, not_to_other_vm, 120)
{
	struct scene *s = &self->scene;
	struct scene other = { .cpus = { s->cpus[0], -1 } };
	struct actor *target, *halter;
	struct yield_trace_event *e;
	int i;

	other.vm = vm_create(1);
	vm_install_exception_handler(other.vm, WAKE_VECTOR, wake_handler);
	target = add_target(&other);
	halter = add_halter(s);
	add(s, guest_busy);

	pin_self_to_cpu(s->cpus[0]);
	start_and_wait(target);
	for (i = 0; i < s->nr_actors; i++)
		start_and_wait(&s->actors[i]);

	yield_trace_start(&s->trace, 0);
	for (i = 0; i < NR_HALTS; i++)
		wake_both(target, kick, halter);
	wait_until_blocked(halter, NULL);
	yield_trace_stop(&s->trace);

	get_halt_totals(&s->trace, halter);
	leave_all(s);
	leave_all(&other);
	kvm_vm_free(other.vm);

	for (e = s->trace.events; e < s->trace.end; e++)
		ASSERT_FALSE(is_halt(e, halter));
}

/* Without exits on HLT a vCPU does not block, and a kick wakes nobody up. */
TEST_F_TIMEOUT(halt_yield, no_exits_on_hlt, 120)
{
	struct scene *s = &self->scene;
	struct yield_trace_event *e;
	struct actor *halter;
	u32 wakes;
	int i;

	if (!(kvm_check_cap(KVM_CAP_X86_DISABLE_EXITS) & KVM_X86_DISABLE_EXITS_HLT))
		SKIP(return, "Exits on HLT can't be disabled");

	vm_enable_cap(s->vm, KVM_CAP_X86_DISABLE_EXITS, KVM_X86_DISABLE_EXITS_HLT);
	halter = add_halter(s);
	add(s, guest_busy);

	pin_self_to_cpu(s->cpus[0]);
	for (i = 0; i < s->nr_actors; i++)
		start_and_wait(&s->actors[i]);

	yield_trace_start(&s->trace, 0);
	for (i = 0; i < NR_HALTS; i++) {
		wakes = READ_ONCE(halter->shared->wakes);
		kick(halter);
		interrupt(halter);
		while (READ_ONCE(halter->shared->wakes) == wakes)
			sched_yield();
	}
	yield_trace_stop(&s->trace);

	get_halt_totals(&s->trace, halter);
	ASSERT_EQ(vcpu_get_stat(halter->vcpu, halt_exits), 0);
	leave_all(s);

	for (e = s->trace.events; e < s->trace.end; e++)
		ASSERT_FALSE(is_halt(e, halter));
}

/*
 * vCPUs kick each other in turn.  A kick that gets lost leaves all of them halted
 * for ever, and the test times out.
 */
static void take_turns(struct scene *s, int nr_vcpus, bool across_cpus,
		       bool signals)
{
	const char *nr_kicks = getenv("NR_KICKS");
	struct actor *a;
	u32 *nr;
	int i;

	max_turns = nr_kicks ? atoi_positive("NR_KICKS", nr_kicks) : NR_KICKS;
	sync_global_to_guest(s->vm, max_turns);
	nr_contenders = nr_vcpus;
	sync_global_to_guest(s->vm, nr_contenders);
	nr = addr_gva2hva(s->vm, (gva_t)&nr_turns);

	for (i = 0; i < nr_vcpus; i++) {
		a = add(s, guest_take_turns);
		a->cpu = s->cpus[across_cpus ? i % 2 : 0];
		a->signalled = signals;
	}
	if (signals)
		signal(SIGUSR1, leave_run);

	for (i = 0; i < nr_vcpus; i++)
		start(&s->actors[i]);
	for (i = 0; signals && READ_ONCE(*nr) < max_turns; i++) {
		pthread_kill(s->actors[i % nr_vcpus].thread, SIGUSR1);
		sched_yield();
	}
	for (i = 0; i < nr_vcpus; i++)
		join(&s->actors[i]);

	TEST_ASSERT_EQ(*nr, max_turns);
	for (i = 0; i < nr_vcpus; i++)
		pr_info("vCPU %d: %lu halts, %lu nominations\n", i,
			vcpu_get_stat(s->actors[i].vcpu, halt_exits),
			vcpu_get_stat(s->actors[i].vcpu, halt_yield_successful));
}

TEST_F_TIMEOUT(halt_yield, every_kick_arrives, 3600)
{
	take_turns(&self->scene, 4, false, false);
}

TEST_F_TIMEOUT(halt_yield, every_kick_arrives_across_cpus, 3600)
{
	if (self->scene.cpus[1] < 0)
		SKIP(return, "Needs 2 CPUs");

	take_turns(&self->scene, 4, true, false);
}

TEST_F_TIMEOUT(halt_yield, every_kick_arrives_with_signals, 3600)
{
	take_turns(&self->scene, 3, false, true);
}

int main(int argc, char *argv[])
{
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_BINARY_STATS_FD));

	return test_harness_run(argc, argv);
}
