/*
 * decisions OLD.so NEW.so: does kvm_vcpu_on_spin() decide the same in both, for all states of small VMs, and for many states of
 * larger ones?
 *
 * A decision is: which vCPUs are tried, in what order; and what that leaves behind in last_boosted_vcpu, in the spin_loop
 * flags of all vCPUs, and in the stats.  NEW walks kvm->ready_vcpus, so for it the state includes stale bits, and these must
 * hold, too: it visits no more vCPUs than have a bit; and after it, as before, each vCPU that is ->ready has its bit.
 *
 * Not covered: anything that changes while the function runs.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

static on_spin_fn old_fn, new_fn;
static unsigned long nr_states;
static struct kvm state, a, b;
static const int results[] = { -3, 0, 1 };	/* -ESRCH, refused, yielded */

static bool bit(struct kvm *kvm, int i) { return kvm->ready_vcpus[i / BITS_PER_LONG] >> i % BITS_PER_LONG & 1; }
static void set(struct kvm *kvm, int i) { kvm->ready_vcpus[i / BITS_PER_LONG] |= 1ul << i % BITS_PER_LONG; }

static void copy(struct kvm *to, int n)
{
	int i;

	memcpy(to, &state, offsetof(struct kvm, vcpu_array));
	memcpy(to->vcpu_array, state.vcpu_array, n * sizeof(struct kvm_vcpu));
	for (i = 0; i < n; i++)
		to->vcpu_array[i].kvm = to;
	to->nr_tried = 0;
	to->visited = 0;
}

static void fail(const char *what, int n, int me, bool kernel)
{
	int i;

	printf("%s: %d vCPUs, vCPU %d spins%s, last boosted %d\n", what, n, me, kernel ? " in kernel mode" : "",
	       state.last_boosted_vcpu);
	for (i = 0; i < n && n < 8; i++) {
		struct kvm_vcpu *v = &state.vcpu_array[i];

		printf("  %d: bit %d ready %d scheduled_out %d blocking %d runnable %d preempted %d in_kernel %d interrupt %d in_spin_loop %d dy_eligible %d result %d\n",
		       i, bit(&state, i), v->ready, v->scheduled_out, v->blocking, v->runnable, v->preempted, v->in_kernel,
		       v->has_interrupt, v->spin_loop.in_spin_loop, v->spin_loop.dy_eligible, v->yield_result);
	}
	exit(1);
}

/* The state is complete, but for the bits of those that are ready. */
static void check(int n, int me, bool kernel)
{
	struct kvm_vcpu saved = state.vcpu_array[me];
	int i, nr_bits = 0;

	/* Only the function itself sets these two, and leaves them false; another vCPU's walk may toggle the second one. */
	state.vcpu_array[me].spin_loop.in_spin_loop = false;
	if (n == 1)
		state.vcpu_array[me].spin_loop.dy_eligible = false;

	for (i = 0; i < n; i++) {
		if (state.vcpu_array[i].ready)
			set(&state, i);
		nr_bits += bit(&state, i) && i != me;
	}
	state.online_vcpus.counter = n;
	copy(&a, n);
	copy(&b, n);
	old_fn(&a.vcpu_array[me], kernel);
	new_fn(&b.vcpu_array[me], kernel);
	nr_states++;

	if (a.nr_tried != b.nr_tried || memcmp(a.tried, b.tried, a.nr_tried * sizeof(int)))
		fail("other targets", n, me, kernel);
	if (a.last_boosted_vcpu != b.last_boosted_vcpu)
		fail("another last_boosted_vcpu", n, me, kernel);
	if ((int)b.visited > nr_bits)
		fail("more visits than bits", n, me, kernel);
	for (i = 0; i < n; i++) {
		struct kvm_vcpu *v = &a.vcpu_array[i], *w = &b.vcpu_array[i];

		if (memcmp(&v->spin_loop, &w->spin_loop, sizeof(v->spin_loop)))
			fail("other spin_loop flags", n, me, kernel);
		if (memcmp(&v->stat, &w->stat, sizeof(v->stat)))
			fail("other stats", n, me, kernel);
		if (w->ready && !bit(&b, i))
			fail("a vCPU that is ready lost its bit", n, me, kernel);
	}
	state.vcpu_array[me] = saved;
}

/* All of one vCPU's state from one number; returns what is left of that. */
#define FULL	(1ul << 10 << 1) * 3
static unsigned long set_vcpu(int i, unsigned long s)
{
	struct kvm_vcpu *v = &state.vcpu_array[i];

#define NEXT(n)	({ unsigned long r = s % (n); s /= (n); r; })
	memset(v, 0, sizeof(*v));
	v->vcpu_id = v->vcpu_idx = i;
	v->ready = NEXT(2);
	v->scheduled_out = NEXT(2);
	v->spin_loop.in_spin_loop = NEXT(2);
	v->spin_loop.dy_eligible = NEXT(2);
	if (NEXT(2))
		set(&state, i);	/* stale, unless ready */
	v->yield_result = results[NEXT(3)];
	/* The rest the function sees combined: (blocking, not runnable), (preempted, no interrupt, not in kernel). */
	v->blocking = NEXT(2);
	v->preempted = NEXT(2);
	v->runnable = NEXT(2);
	v->in_kernel = NEXT(2);
	v->has_interrupt = NEXT(2);
	return s;
}
#define COMBINED (FULL / 8)	/* runnable, in_kernel, has_interrupt: 0 */

static void all_states(int n, unsigned long per_vcpu)
{
	unsigned long s, total = 1;
	int i, me, last, kernel;

	for (i = 0; i < n; i++)
		total *= per_vcpu;
	for (s = 0; s < total; s++) {
		memset(state.ready_vcpus, 0, sizeof(state.ready_vcpus));
		unsigned long rest = s;

		for (i = 0; i < n; i++, rest /= per_vcpu)
			set_vcpu(i, rest % per_vcpu);
		for (me = 0; me < n; me++)
			for (last = -1; last < n; last++)
				for (kernel = 0; kernel < 2; kernel++) {
					state.last_boosted_vcpu = last;
					check(n, me, kernel);
				}
	}
}

/* Numerical Recipes' 64 bit generator: the same states each time. */
static unsigned long rnd(void)
{
	static unsigned long x = 1;

	x = x * 6364136223846793005ul + 1442695040888963407ul;
	return x >> 33;
}

static void some_states(int n, unsigned long nr)
{
	int i;

	while (nr--) {
		int sparse = rnd() % 4;

		memset(state.ready_vcpus, 0, sizeof(state.ready_vcpus));
		for (i = 0; i < n; i++) {
			set_vcpu(i, rnd() % (FULL));
			/* Few that wait, and yields that fail, let it get further. */
			if (sparse && rnd() % n)
				state.vcpu_array[i].ready = false;
			if (rnd() % 4)
				state.vcpu_array[i].yield_result = results[rnd() % 2];
		}
		state.last_boosted_vcpu = (int)(rnd() % (n + 1)) - 1;
		check(n, rnd() % n, rnd() % 2);
	}
}

static on_spin_fn load(const char *path)
{
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	void *fn = lib ? dlsym(lib, "kvm_vcpu_on_spin") : NULL;

	if (!fn) {
		fprintf(stderr, "error: %s\n", dlerror());
		exit(2);
	}
	return fn;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	old_fn = load(argv[1]);
	new_fn = load(argv[2]);

	all_states(1, FULL);
	all_states(2, COMBINED);
	some_states(2, 1000000);
	some_states(3, 2000000);
	some_states(4, 2000000);
	some_states(6, 1000000);
	some_states(130, 100000);
	printf("%lu states\n", nr_states);
	return 0;
}
