/* The fused negotiation: one pass over memory reads y, g, a, F and writes y and z. Built on first use by native.py with
 * the system's C compiler; kernels.py holds the reference every number here is tested against. Compiled without
 * floating-point contraction, so each value is rounded as the reference rounds it. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#define CHUNK 16384 /* elements a thread takes at a time */
#define BLOCK 1024  /* elements of z held in the first-level cache before they are streamed out */

typedef struct {
    double lr, momentum, decay;
    double fresh;   /* what a new gradient adds to the momentum buffer: 1 - dampening, or 1 on the first step */
    double c, mix;  /* threshold per unit of importance; `mix` of it is a soft bound, the rest shrinks */
    double damping; /* added to the importance */
    int32_t nesterov, maximize, reflect; /* reflect 0: forward-backward */
} hyper;

/* z is not read again before the next step: written past the caches it costs one memory transfer instead of two. */
static void stream_out(void *to, const void *from, size_t bytes) {
#ifdef __AVX__
    if (((uintptr_t)to & 31) == 0 && (bytes & 31) == 0) {
        for (size_t i = 0; i < bytes; i += 32)
            _mm256_stream_si256((__m256i *)((char *)to + i), _mm256_load_si256((const __m256i *)((const char *)from + i)));
        return;
    }
#endif
    memcpy(to, from, bytes);
}

/* `buffered`, `shrinks` and `keeps_z` are constants at every call, so each variant becomes a loop without branches.
 * Where c is infinite the bound is infinite or NaN, and both comparisons with it select the anchor. */
#define STEP(NAME, T, ABS, COPYSIGN)                                                                                   \
    static inline __attribute__((always_inline)) void NAME##_variant(                                                  \
        int64_t n, T *restrict y, const T *restrict g, const T *restrict a, const T *restrict F, T *restrict z,        \
        T *restrict buf, const hyper *h, const int buffered, const int shrinks, const int keeps_z) {                   \
        const T lr = (T)h->lr, mu = (T)h->momentum, decay = (T)h->decay, fresh = (T)h->fresh, damping = (T)h->damping; \
        const T c = (T)h->c, mix = (T)h->mix, rest = (T)(1 - h->mix), sign = (T)(h->maximize ? -1 : 1);                \
        const T reach = (T)(h->reflect ? 2 : 1), carry = (T)(h->reflect ? 1 : 0);                                      \
        const int look = h->nesterov;                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            T p = sign * g[i] + decay * y[i];                                                                          \
            if (buffered) {                                                                                            \
                const T b = mu * buf[i] + fresh * p;                                                                   \
                buf[i] = b;                                                                                            \
                p = look ? p + mu * b : b;                                                                             \
            }                                                                                                          \
            const T s = lr * p, r = y[i] - reach * s, d = r - a[i];                                                    \
            const T t = (F[i] + damping) * c, bound = shrinks ? t * mix : t;                                           \
            const T out = shrinks ? a[i] + (d - COPYSIGN(bound, d)) / (1 + t * rest) : r - COPYSIGN(bound, d);         \
            const T v = ABS(d) > bound ? out : a[i];                                                                   \
            if (keeps_z) z[i] = v;                                                                                     \
            y[i] = v + carry * s;                                                                                      \
        }                                                                                                              \
    }                                                                                                                  \
    static void NAME(int64_t n, T *y, const T *g, const T *a, const T *F, T *z, T *buf, const hyper *h) {              \
        T block[BLOCK] __attribute__((aligned(64)));                                                                   \
        const int variant = (buf ? 4 : 0) | (h->mix != 1 ? 2 : 0) | (z ? 1 : 0);                                       \
        for (int64_t at = 0; at < n; at += BLOCK) {                                                                    \
            const int64_t m = n - at < BLOCK ? n - at : BLOCK;                                                         \
            T *const yk = y + at, *const bk = buf ? buf + at : 0;                                                      \
            const T *const gk = g + at, *const ak = a + at, *const Fk = F + at;                                        \
            switch (variant) {                                                                                         \
            case 0: NAME##_variant(m, yk, gk, ak, Fk, block, bk, h, 0, 0, 0); break;                                   \
            case 1: NAME##_variant(m, yk, gk, ak, Fk, block, bk, h, 0, 0, 1); break;                                   \
            case 2: NAME##_variant(m, yk, gk, ak, Fk, block, bk, h, 0, 1, 0); break;                                   \
            case 3: NAME##_variant(m, yk, gk, ak, Fk, block, bk, h, 0, 1, 1); break;                                   \
            case 4: NAME##_variant(m, yk, gk, ak, Fk, block, bk, h, 1, 0, 0); break;                                   \
            case 5: NAME##_variant(m, yk, gk, ak, Fk, block, bk, h, 1, 0, 1); break;                                   \
            case 6: NAME##_variant(m, yk, gk, ak, Fk, block, bk, h, 1, 1, 0); break;                                   \
            case 7: NAME##_variant(m, yk, gk, ak, Fk, block, bk, h, 1, 1, 1); break;                                   \
            }                                                                                                          \
            if (z) stream_out(z + at, block, (size_t)m * sizeof(T));                                                   \
        }                                                                                                              \
    }

STEP(step_f32, float, fabsf, copysignf)
STEP(step_f64, double, fabs, copysign)

/* The chunks of all tensors, laid end to end, are cut into one contiguous run per thread. */
typedef struct {
    int64_t from, to;
} run;

static int64_t chunks_of(int64_t size) { return (size + CHUNK - 1) / CHUNK; }

static run my_run(int64_t tensors, const int64_t *sizes) {
    int64_t total = 0, me = 0, all = 1;
    for (int64_t k = 0; k < tensors; k++) total += chunks_of(sizes[k]);
#ifdef _OPENMP
    me = omp_get_thread_num();
    all = omp_get_num_threads();
#endif
    return (run){total * me / all, total * (me + 1) / all};
}

/* All tensors of a group in one call. The arrays z (no reflection) and buf (no momentum) may be null. */
#define ENTRY(NAME, INNER, T)                                                                                          \
    void NAME(int32_t threads, int64_t tensors, const int64_t *sizes, T **y, T **g, T **a, T **F, T **z, T **buf,      \
              const hyper *h) {                                                                                        \
        _Pragma("omp parallel num_threads(threads)") {                                                                 \
            run mine = my_run(tensors, sizes);                                                                         \
            for (int64_t k = 0; k < tensors; k++) {                                                                    \
                const int64_t chunks = chunks_of(sizes[k]);                                                            \
                const int64_t lo = mine.from > 0 ? mine.from : 0, hi = mine.to < chunks ? mine.to : chunks;            \
                for (int64_t c = lo; c < hi; c++) {                                                                    \
                    const int64_t at = c * CHUNK, n = sizes[k] - at < CHUNK ? sizes[k] - at : CHUNK;                   \
                    INNER(n, y[k] + at, g[k] + at, a[k] + at, F[k] + at, z ? z[k] + at : 0, buf ? buf[k] + at : 0, h); \
                }                                                                                                      \
                mine.from -= chunks;                                                                                   \
                mine.to -= chunks;                                                                                     \
            }                                                                                                          \
        }                                                                                                              \
    }

ENTRY(drcl_step_f32, step_f32, float)
ENTRY(drcl_step_f64, step_f64, double)

/* The first tensor that holds a NaN or an infinity, or -1. Runs before anything is written; four streams at once keep
 * more loads in flight than one. */
#define FINITE(NAME, T, BITS, E)                                                                                       \
    int64_t NAME(int32_t threads, int64_t tensors, const int64_t *sizes, T **g) {                                      \
        int64_t worst = INT64_MAX;                                                                                     \
        _Pragma("omp parallel num_threads(threads) reduction(min : worst)") {                                          \
            run mine = my_run(tensors, sizes);                                                                         \
            for (int64_t k = 0; k < tensors; k++) {                                                                    \
                const int64_t chunks = chunks_of(sizes[k]);                                                            \
                const int64_t lo = mine.from > 0 ? mine.from : 0, hi = mine.to < chunks ? mine.to : chunks;            \
                for (int64_t c = lo; c < hi; c++) {                                                                    \
                    const int64_t at = c * CHUNK, n = sizes[k] - at < CHUNK ? sizes[k] - at : CHUNK, q = n / 4;        \
                    const BITS *p = (const BITS *)(g[k] + at);                                                         \
                    BITS bad = 0;                                                                                      \
                    for (int64_t i = 0; i < q; i++)                                                                    \
                        bad |= (BITS)((p[i] & E) == E) | (BITS)((p[i + q] & E) == E) |                                 \
                               (BITS)((p[i + 2 * q] & E) == E) | (BITS)((p[i + 3 * q] & E) == E);                      \
                    for (int64_t i = 4 * q; i < n; i++) bad |= (BITS)((p[i] & E) == E);                                \
                    if (bad && k < worst) worst = k;                                                                   \
                }                                                                                                      \
                mine.from -= chunks;                                                                                   \
                mine.to -= chunks;                                                                                     \
            }                                                                                                          \
        }                                                                                                              \
        return worst == INT64_MAX ? -1 : worst;                                                                        \
    }

FINITE(drcl_finite_f32, float, uint32_t, 0x7f800000u)
FINITE(drcl_finite_f64, double, uint64_t, 0x7ff0000000000000ull)
