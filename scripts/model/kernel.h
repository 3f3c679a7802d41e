/*
 * As much of the kernel as kvm_vcpu_on_spin() needs, for scripts/decisions: it compiles the function's real text, as it is
 * before and after a patch, against this, into a library each.
 */
#include <stdbool.h>
#include <stddef.h>

#define MAX_VCPUS	200
#define BITS_PER_LONG	64

/* One thread only: no barriers, and plain accesses will do. */
#define READ_ONCE(x)		(x)
#define WRITE_ONCE(x, v)	((x) = (v))
#define data_race(x)		(x)
#define smp_rmb()
#define smp_mb__after_atomic()
#define WARN_ON_ONCE(x)		(x)
#undef __always_inline
#define __always_inline		inline
#define CONFIG_HAVE_KVM_CPU_RELAX_INTERCEPT

typedef struct { int counter; } atomic_t;

struct kvm;

struct kvm_vcpu {
	struct kvm *kvm;
	int vcpu_id, vcpu_idx;
	struct { bool in_spin_loop, dy_eligible; } spin_loop;
	bool preempted, ready, scheduled_out;
	struct { struct { unsigned long spin_yield_attempted, spin_yield_successful; } generic; } stat;

	/* What the model answers when the function asks. */
	bool blocking, runnable, in_kernel, has_interrupt;
	int yield_result;
};

struct kvm {
	atomic_t online_vcpus;
	int last_boosted_vcpu;
	unsigned long ready_vcpus[(MAX_VCPUS + BITS_PER_LONG - 1) / BITS_PER_LONG];
	struct kvm_vcpu vcpu_array[MAX_VCPUS];

	/* What the function did. */
	int tried[MAX_VCPUS], nr_tried;
	unsigned int visited;
};

enum { KVM_YIELD_SPIN };

typedef void (*on_spin_fn)(struct kvm_vcpu *me, bool yield_to_kernel_mode);

#ifdef TEXT
static inline int atomic_read(atomic_t *v) { return v->counter; }
static inline bool test_bit(int nr, unsigned long *p) { return p[nr / BITS_PER_LONG] >> nr % BITS_PER_LONG & 1; }
static inline void set_bit(int nr, unsigned long *p) { p[nr / BITS_PER_LONG] |= 1ul << nr % BITS_PER_LONG; }
static inline void clear_bit(int nr, unsigned long *p) { p[nr / BITS_PER_LONG] &= ~(1ul << nr % BITS_PER_LONG); }

/* lib/find_bit.c; what is made of it, in include/linux/find.h, is the kernel's. */
static inline unsigned long find_next_bit(const unsigned long *p, unsigned long size, unsigned long offset)
{
	while (offset < size && !test_bit(offset, (unsigned long *)p))
		offset++;
	return offset < size ? offset : size;
}
static inline unsigned long find_first_bit(const unsigned long *p, unsigned long size) { return find_next_bit(p, size, 0); }

static inline void *xa_load(struct kvm_vcpu (*array)[MAX_VCPUS], unsigned long i) { return &(*array)[i]; }
static inline struct kvm_vcpu *kvm_get_vcpu(struct kvm *kvm, int i)
{
	return i < atomic_read(&kvm->online_vcpus) ? &kvm->vcpu_array[i] : NULL;
}

static inline void kvm_vcpu_set_in_spin_loop(struct kvm_vcpu *vcpu, bool val) { vcpu->spin_loop.in_spin_loop = val; }
static inline void kvm_vcpu_set_dy_eligible(struct kvm_vcpu *vcpu, bool val) { vcpu->spin_loop.dy_eligible = val; }
static inline bool kvm_vcpu_is_blocking(struct kvm_vcpu *vcpu) { return vcpu->blocking; }
static inline bool kvm_arch_dy_runnable(struct kvm_vcpu *vcpu) { return vcpu->runnable; }
static inline bool kvm_arch_dy_has_pending_interrupt(struct kvm_vcpu *vcpu) { return vcpu->has_interrupt; }
static inline bool kvm_arch_vcpu_preempted_in_kernel(struct kvm_vcpu *vcpu) { return vcpu->in_kernel; }

static inline int kvm_vcpu_yield_to(struct kvm_vcpu *me, struct kvm_vcpu *target, int reason, unsigned int visited)
{
	(void)reason;
	me->kvm->visited = visited;
	me->kvm->tried[me->kvm->nr_tried++] = target->vcpu_idx;
	return target->yield_result;
}
/* Uses a `me` in scope: the event itself does not say which VM. */
#define trace_kvm_directed_yield(id, target, pid, reason, result, n) (me->kvm->visited = (n))

#include TEXT
#endif
