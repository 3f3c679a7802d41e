/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * As much of the kernel as kvm_vcpu_on_spin() needs, for scripts/decision-model:
 * the function's text is taken from a commit and compiled against this.  Names
 * and types are the kernel's; what architectures and the scheduler would answer
 * is part of a vCPU's state.  There is one thread, so barriers do nothing.
 */
#ifndef MODEL_SHIM_H
#define MODEL_SHIM_H

#include <stdbool.h>
#include <stddef.h>

#define MODEL_VCPUS	192
#define BITS_PER_LONG	64
#define MODEL_WORDS	(MODEL_VCPUS / BITS_PER_LONG)

#define CONFIG_HAVE_KVM_CPU_RELAX_INTERCEPT

typedef struct { int counter; } atomic_t;

struct kvm;

struct kvm_vcpu {
	struct kvm *kvm;
	int vcpu_id;
	int vcpu_idx;
	bool preempted;
	bool ready;
	bool scheduled_out;
	struct {
		bool in_spin_loop;
		bool dy_eligible;
	} spin_loop;
	struct {
		struct {
			unsigned int spin_yield_attempted;
			unsigned int spin_yield_successful;
		} generic;
	} stat;

	/* What the stubs below answer. */
	bool blocking;
	bool runnable;
	bool in_kernel;
	bool pending_interrupt;
	signed char yield_result;
	/* The bit in kvm->ready_vcpus at the start. */
	bool bit;
	/* Not ->ready at first, but when its bit is about to be cleared. */
	bool late;
};

struct xarray {
	struct kvm_vcpu entry[MODEL_VCPUS];
};

struct kvm {
	atomic_t online_vcpus;
	int last_boosted_vcpu;
	unsigned long ready_vcpus[MODEL_WORDS];
	struct xarray vcpu_array;
};

enum kvm_yield_reason { KVM_YIELD_SPIN, KVM_YIELD_OTHER };

/* What one call of kvm_vcpu_on_spin() did. */
struct record {
	struct kvm_vcpu *me;
	int nr_looked_up;
	int nr_tried;
	int nr_nobody;		/* events that say that nobody was yielded to */
	int nr_searches;	/* for the next bit */
	unsigned char looked_up[MODEL_VCPUS];
	unsigned char tried[MODEL_VCPUS];
};

extern struct record *record;

/* kvm_vcpu_on_spin() of the two commits */
void parent_on_spin(struct kvm_vcpu *me, bool yield_to_kernel_mode);
void walker_on_spin(struct kvm_vcpu *me, bool yield_to_kernel_mode);

/* Says what is wrong in which state, and exits. */
void __attribute__((noreturn)) model_fail(const char *what);

#ifdef MODEL_HANDLER

#define READ_ONCE(x)		(*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, val)	(*(volatile typeof(x) *)&(x) = (val))
#define data_race(expr)		(expr)
#define smp_rmb()		do { } while (0)
#define smp_mb__after_atomic()	do { } while (0)
#define smp_store_mb(var, val)	WRITE_ONCE(var, val)
#define unlikely(x)		(x)
#undef __always_inline
#define __always_inline		inline
#define min(a, b)		((a) < (b) ? (a) : (b))
#define array_index_nospec(index, size)	(index)
#define WARN_ON_ONCE(cond)						\
	((cond) ? (model_fail("WARN_ON_ONCE(" #cond ")"), true) : false)

#define __ffs(word)		((unsigned long)__builtin_ctzl(word))
#define BITMAP_FIRST_WORD_MASK(start) (~0UL << ((start) & (BITS_PER_LONG - 1)))
#define find_next_bit(...)	(model_search(), _find_next_bit(__VA_ARGS__))
#define find_first_bit(...)	(model_search(), _find_first_bit(__VA_ARGS__))

static inline void model_search(void)
{
	/* Three a step are plenty. */
	if (++record->nr_searches > 3 * (MODEL_VCPUS + 1))
		model_fail("the walk does not end");
}

static inline int atomic_read(const atomic_t *v)
{
	return v->counter;
}

static inline bool test_bit(long nr, const unsigned long *addr)
{
	return addr[nr / BITS_PER_LONG] >> nr % BITS_PER_LONG & 1;
}

static inline void set_bit(long nr, unsigned long *addr)
{
	addr[nr / BITS_PER_LONG] |= 1UL << nr % BITS_PER_LONG;
}

#ifdef MODEL_LATE
static void kvm_vcpu_set_ready(struct kvm_vcpu *vcpu);
#endif

static inline void clear_bit(long nr, unsigned long *addr)
{
#ifdef MODEL_LATE
	struct kvm_vcpu *vcpu = &record->me->kvm->vcpu_array.entry[nr];

	if (vcpu->late)
		kvm_vcpu_set_ready(vcpu);
#endif
	addr[nr / BITS_PER_LONG] &= ~(1UL << nr % BITS_PER_LONG);
}

static inline struct kvm_vcpu *xa_load(struct xarray *xa, unsigned long index)
{
	if (index >= record->me->kvm->online_vcpus.counter)
		model_fail("looks up a vCPU that is not online");
	if (record->nr_looked_up == record->me->kvm->online_vcpus.counter)
		model_fail("visits more vCPUs than there are");

	record->looked_up[record->nr_looked_up++] = index;
	return &xa->entry[index];
}

static inline bool kvm_vcpu_is_blocking(struct kvm_vcpu *vcpu)
{
	return vcpu->blocking;
}

static inline bool kvm_arch_dy_runnable(struct kvm_vcpu *vcpu)
{
	return vcpu->runnable;
}

static inline bool kvm_arch_dy_has_pending_interrupt(struct kvm_vcpu *vcpu)
{
	return vcpu->pending_interrupt;
}

static inline bool kvm_arch_vcpu_preempted_in_kernel(struct kvm_vcpu *vcpu)
{
	return vcpu->in_kernel;
}

static inline int kvm_vcpu_yield_to(struct kvm_vcpu *vcpu,
				    struct kvm_vcpu *target,
				    enum kvm_yield_reason reason,
				    unsigned int visited)
{
	if (vcpu != record->me || reason != KVM_YIELD_SPIN)
		model_fail("yields from another vCPU, or for another reason");
	if (visited != record->nr_looked_up)
		model_fail("->visited is not the number of vCPUs visited");
	if (record->nr_tried == MODEL_VCPUS)
		model_fail("tries more vCPUs than there are");

	record->tried[record->nr_tried++] = target->vcpu_idx;
	return target->yield_result;
}

static inline void trace_kvm_directed_yield(int vcpu_id, int target_idx,
					    int pid,
					    enum kvm_yield_reason reason,
					    int ret, unsigned int visited)
{
	if (vcpu_id != record->me->vcpu_id || target_idx != -1 || pid || ret ||
	    reason != KVM_YIELD_SPIN)
		model_fail("traces something else than that it found nobody");
	if (visited != record->nr_looked_up)
		model_fail("->visited is not the number of vCPUs visited");

	record->nr_nobody++;
}

#include MODEL_HANDLER

#endif /* MODEL_HANDLER */
#endif /* MODEL_SHIM_H */
