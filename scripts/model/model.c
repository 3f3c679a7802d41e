// SPDX-License-Identifier: GPL-2.0-only
/*
 * Does kvm_vcpu_on_spin() decide the same in two commits: one that walks all
 * vCPUs, and the next, that walks only those with a bit in kvm->ready_vcpus?
 * scripts/decision-model links the two functions with this.
 *
 * Compared are, for each state: which vCPUs are tried, in what order; and what
 * is left in last_boosted_vcpu, in the spin_loop flags and stats of all vCPUs,
 * and in the trace, if nobody was yielded to.
 *
 * For the second there are bits.  A vCPU that is ->ready has one, others may.
 * A vCPU can also be "late": it is not ->ready when the walk looks at it first,
 * but calls kvm_vcpu_set_ready() right before its bit is cleared.  The walk has
 * to treat it as ->ready, so that is what it is for the other function.
 * It is also checked that the vCPUs visited are those with a bit, other than
 * the one that spins, each once, in order, up to the one that ends the walk; and
 * that the walk clears the bits of those of them that are not ->ready, and no
 * others.
 *
 * To try all states of three vCPUs and more would take too long.  Which are left
 * out is said at the functions that choose: every(), combined() and outcome().
 * Larger VMs, for a bitmap of several words, are tried at random.
 *
 * Not covered: memory ordering, for which there are litmus tests, and what
 * changes while the function runs, but for vCPUs that are late.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

#define ESRCH		3
#define MAX_STATES	4096	/* of one vCPU */

struct list {
	int nr;
	struct kvm_vcpu vcpu[MAX_STATES];
};

struct record *record;

/* The state before: last_boosted_vcpu, the bits, and all vCPUs. */
static struct kvm start;
static bool yield_to_kernel_mode;
static int nr_vcpus;
static int me;

static const char *part;
static unsigned long nr_states;

void model_fail(const char *what)
{
	int i;

	printf("not ok - decision model: %s: %s\n", part, what);
	fflush(stdout);
	fprintf(stderr, "# %d vCPUs, %d spins in %s mode, last boosted: %d\n",
		nr_vcpus, me, yield_to_kernel_mode ? "kernel" : "any",
		start.last_boosted_vcpu);
	for (i = 0; i < nr_vcpus; i++) {
		struct kvm_vcpu *v = &start.vcpu_array.entry[i];

		if (nr_vcpus > 8 && !v->bit)
			continue;
		fprintf(stderr,
			"# %d: bit %d ready %d%s scheduled_out %d blocking %d runnable %d preempted %d in_kernel %d interrupt %d in_spin_loop %d dy_eligible %d result %d\n",
			i, v->bit, v->ready, v->late ? " (late)" : "",
			v->scheduled_out, v->blocking, v->runnable,
			v->preempted, v->in_kernel, v->pending_interrupt,
			v->spin_loop.in_spin_loop, v->spin_loop.dy_eligible,
			v->yield_result);
	}
	exit(1);
}

/* Call @on_spin in @kvm, a copy of the state. */
static void run(void (*on_spin)(struct kvm_vcpu *, bool), struct kvm *kvm,
		struct record *r, bool late_is_ready)
{
	int i;

	kvm->online_vcpus.counter = nr_vcpus;
	kvm->last_boosted_vcpu = start.last_boosted_vcpu;
	memcpy(kvm->ready_vcpus, start.ready_vcpus, sizeof(kvm->ready_vcpus));
	for (i = 0; i < nr_vcpus; i++) {
		struct kvm_vcpu *v = &kvm->vcpu_array.entry[i];

		*v = start.vcpu_array.entry[i];
		v->kvm = kvm;
		v->vcpu_idx = i;
		v->vcpu_id = 2 * i + 1;
		if (late_is_ready)
			v->ready |= v->late;
	}

	r->me = &kvm->vcpu_array.entry[me];
	r->nr_looked_up = 0;
	r->nr_tried = 0;
	r->nr_nobody = 0;
	r->nr_searches = 0;
	record = r;
	on_spin(r->me, yield_to_kernel_mode);
}

/* Is the last vCPU that was tried one that ends the walk? */
static bool walk_ended(struct record *r)
{
	int i, no_task = 0, result = 0;

	for (i = 0; i < r->nr_tried; i++) {
		result = start.vcpu_array.entry[r->tried[i]].yield_result;
		no_task += result < 0;
	}
	return result > 0 || no_task == 3;
}

/* Whom the walk visited, and which bits are left. */
static void check_walk(struct kvm *kvm, struct record *r)
{
	unsigned long bits[MODEL_WORDS];
	bool ended = walk_ended(r);
	int i, idx, visited = 0;

	memcpy(bits, start.ready_vcpus, sizeof(bits));
	idx = start.last_boosted_vcpu;
	for (i = 0; i < nr_vcpus; i++) {
		struct kvm_vcpu *v;

		if (++idx >= nr_vcpus)
			idx = 0;
		v = &start.vcpu_array.entry[idx];
		if (idx == me || !v->bit)
			continue;

		if (visited == r->nr_looked_up)
			model_fail("does not visit a vCPU that has a bit");
		if (r->looked_up[visited++] != idx)
			model_fail("visits a vCPU without a bit, or in another order");
		if (!v->ready && !v->late)
			bits[idx / BITS_PER_LONG] &= ~(1UL << idx % BITS_PER_LONG);
		if (ended && idx == r->tried[r->nr_tried - 1])
			break;
	}
	if (visited != r->nr_looked_up)
		model_fail("visits more than the vCPUs that have a bit");

	for (i = 0; i < MODEL_WORDS; i++) {
		if (bits[i] & ~kvm->ready_vcpus[i])
			model_fail("clears the bit of a vCPU that is ready, or not visited");
		if (~bits[i] & kvm->ready_vcpus[i])
			model_fail("leaves the bit of a vCPU that is not ready");
	}
}

/* Compare the two functions in one state.  @others: the bits of no vCPU. */
static void check(unsigned long others)
{
	static struct kvm parent, walker;
	static struct record p, w;
	int i;

	for (i = 0; i < MODEL_WORDS; i++)
		start.ready_vcpus[i] = others;
	for (i = 0; i < nr_vcpus; i++) {
		unsigned long *word = &start.ready_vcpus[i / BITS_PER_LONG];
		unsigned long mask = 1UL << i % BITS_PER_LONG;

		if (start.vcpu_array.entry[i].bit)
			*word |= mask;
		else
			*word &= ~mask;
	}

	run(parent_on_spin, &parent, &p, true);
	run(walker_on_spin, &walker, &w, false);
	nr_states++;

	if (p.nr_tried != w.nr_tried || memcmp(p.tried, w.tried, p.nr_tried))
		model_fail("tries other vCPUs");
	if (parent.last_boosted_vcpu != walker.last_boosted_vcpu)
		model_fail("another last_boosted_vcpu");
	if (p.nr_nobody != w.nr_nobody)
		model_fail("traces another decision");
	for (i = 0; i < nr_vcpus; i++) {
		struct kvm_vcpu *v = &parent.vcpu_array.entry[i];
		struct kvm_vcpu *u = &walker.vcpu_array.entry[i];

		if (v->spin_loop.in_spin_loop != u->spin_loop.in_spin_loop ||
		    v->spin_loop.dy_eligible != u->spin_loop.dy_eligible)
			model_fail("other spin_loop flags");
		if (memcmp(&v->stat, &u->stat, sizeof(v->stat)))
			model_fail("other stats");
	}
	check_walk(&walker, &w);
}

/*
 * All states of a vCPU, but for those that the index does not allow (->ready
 * without a bit), and for "late" ones that are not.
 */
static bool every(struct kvm_vcpu *v)
{
	return (v->bit || !v->ready) && (!v->late || (v->bit && !v->ready));
}

/*
 * Both functions look at two groups of fields only through one condition each:
 *	blocking && !runnable
 *	preempted && yield_to_kernel_mode && !pending_interrupt && !in_kernel
 * So one state of each group where it is true and one where it is false will do.
 * That nobody looks at them otherwise is checked with every(), for two vCPUs, and
 * at random for more.
 */
static bool combined(struct kvm_vcpu *v)
{
	return every(v) && !v->runnable && !v->in_kernel &&
	       !v->pending_interrupt;
}

/*
 * Each distinct thing that can happen to a vCPU in the walk, once: it has no
 * bit; or no more than a bit; it is ->ready, but runs; or it is blocking; it is
 * not eligible; it is tried, with each result, spinning itself or not; it is
 * tried, with each result, because it was late.
 * The conditions that lead there look at no other vCPU and at nothing that the
 * walk changes, but for spin_loop, which is why vCPUs that spin are in.
 */
static bool outcome(struct kvm_vcpu *v)
{
	bool spins = v->spin_loop.in_spin_loop;
	bool eligible = v->spin_loop.dy_eligible;

	if (!combined(v) || v->preempted || (eligible && !spins))
		return false;
	if (!v->ready && !v->late)
		return !v->scheduled_out && !v->blocking && !spins && !v->yield_result;
	if (!v->scheduled_out || v->blocking)
		return v->scheduled_out == v->blocking && !v->late && !spins && !v->yield_result;
	if (v->late)
		return !spins;
	return !spins || eligible || !v->yield_result;
}

/* The vCPU that spins: no walk looks at it, so it is never late. */
static bool every_me(struct kvm_vcpu *v)
{
	return every(v) && !v->late;
}

/* As above, and what matters are only the bit and the flags, if any. */
static bool combined_me(struct kvm_vcpu *v)
{
	return combined(v) && !v->late && !v->scheduled_out && !v->blocking &&
	       !v->preempted && !v->yield_result;
}

static bool outcome_me(struct kvm_vcpu *v)
{
	return combined_me(v) && !v->ready && !v->spin_loop.in_spin_loop &&
	       !v->spin_loop.dy_eligible;
}

/*
 * The only one in a VM has both flags clear: only its own kvm_vcpu_on_spin()
 * sets the first, and clears both, and only other vCPUs set the second.
 */
static bool alone(struct kvm_vcpu *v)
{
	return every_me(v) && !v->spin_loop.in_spin_loop &&
	       !v->spin_loop.dy_eligible;
}

/* The states of a vCPU that @choose returns true for. */
static struct list *list(bool (*choose)(struct kvm_vcpu *))
{
	static const int results[] = { 0, 1, -ESRCH };
	struct list *list = calloc(1, sizeof(*list));
	int i;

	if (!list)
		abort();
	for (i = 0; i < 3 << 11; i++) {
		struct kvm_vcpu v = {
			.ready = i >> 0 & 1,
			.bit = i >> 1 & 1,
			.late = i >> 2 & 1,
			.scheduled_out = i >> 3 & 1,
			.blocking = i >> 4 & 1,
			.runnable = i >> 5 & 1,
			.preempted = i >> 6 & 1,
			.in_kernel = i >> 7 & 1,
			.pending_interrupt = i >> 8 & 1,
			.spin_loop.in_spin_loop = i >> 9 & 1,
			.spin_loop.dy_eligible = i >> 10 & 1,
			.yield_result = results[i >> 11],
		};

		if (choose(&v))
			list->vcpu[list->nr++] = v;
	}
	return list;
}

static void begin(const char *name)
{
	part = name;
	nr_states = 0;
}

static void end(void)
{
	printf("ok - decision model: %s: the same in %lu states\n", part,
	       nr_states);
	fflush(stdout);
}

/* All combinations of the states of all vCPUs from number @i on. */
static void combine(int i, struct list *others, struct list *spins)
{
	struct list *l = i == me ? spins : others;
	int s, last, mode;

	if (i < nr_vcpus) {
		for (s = 0; s < l->nr; s++) {
			start.vcpu_array.entry[i] = l->vcpu[s];
			combine(i + 1, others, spins);
		}
		return;
	}

	for (last = -1; last < nr_vcpus; last++) {
		for (mode = 0; mode < 2; mode++) {
			start.last_boosted_vcpu = last;
			yield_to_kernel_mode = mode;
			check(nr_states & 2 ? ~0UL : 0);
		}
	}
}

static void all_states(const char *name, int n,
		       bool (*choose)(struct kvm_vcpu *),
		       bool (*choose_me)(struct kvm_vcpu *))
{
	struct list *others = list(choose), *spins = list(choose_me);

	begin(name);
	nr_vcpus = n;
	for (me = 0; me < n; me++)
		combine(0, others, spins);
	end();
	free(others);
	free(spins);
}

/* A linear congruential generator: the same states each time. */
static unsigned int rnd(unsigned int below)
{
	static unsigned long x = 1;

	x = x * 6364136223846793005UL + 1442695040888963407UL;
	return (x >> 33) % below;
}

/* @nr states of @from to @to vCPUs, of all that there are. */
static void some_states(const char *name, int from, int to, unsigned long nr)
{
	struct list *l = list(every);
	int i;

	begin(name);
	while (nr--) {
		/* In eighths: how many are without a bit; let it pass on. */
		int none = rnd(9), fail = rnd(9);

		nr_vcpus = from + rnd(to - from + 1);
		me = rnd(nr_vcpus);
		for (i = 0; i < nr_vcpus; i++) {
			struct kvm_vcpu *v = &start.vcpu_array.entry[i];

			*v = l->vcpu[rnd(l->nr)];
			if (rnd(8) < none) {
				v->ready = false;
				v->bit = false;
				v->late = false;
			}
			if (rnd(8) < fail)
				v->yield_result = 0;
		}
		start.vcpu_array.entry[me].late = false;
		start.last_boosted_vcpu = (int)rnd(nr_vcpus + 1) - 1;
		yield_to_kernel_mode = rnd(2);
		check(rnd(2) ? ~0UL : 0);
	}
	end();
	free(l);
}

/* The quick ones first, for those that differ. */
int main(void)
{
	all_states("1 vCPU, all states", 1, every, alone);
	all_states("4 vCPUs, all outcomes", 4, outcome, outcome_me);
	all_states("5 vCPUs, all outcomes", 5, outcome, outcome_me);
	some_states("2 to 6 vCPUs, at random", 2, 6, 4000000);
	some_states("62 to 66 vCPUs, at random", 62, 66, 200000);
	some_states("126 to 130 vCPUs, at random", 126, 130, 200000);
	all_states("3 vCPUs, all combined states", 3, combined, combined_me);
	all_states("2 vCPUs, all states", 2, every, every_me);
	return 0;
}
