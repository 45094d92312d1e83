/* Dropout, 2x2 max-pooling and ReLU in one pass over memory, and the way back. Built on first use by drcl.compiled;
 * pooling.py says when it is used. Every value is the one that torch's three layers give.
 *
 * Images are channels last: x is [n, h, w, c], out and which are [n, h/2, w/2, c]. `which` is the place in its square
 * from which a value came, 0 to 3, or 4 where the ReLU stopped it. It is as wide as a float, so that a loop over few
 * channels still fills whole vectors. */
#include <stdint.h>

#define VALUE(AT) (drops ? x[(AT) + j] * (bits[(AT) + j] >= least ? scale : 0.0f) : x[(AT) + j])
#define COMPARE(AT, PLACE)                                                                                             \
    {                                                                                                                  \
        const float v = VALUE(AT);                                                                                     \
        const int more = (v > most) | (v != v); /* NaN wins, as in torch */                                            \
        most = more ? v : most;                                                                                        \
        place = more ? PLACE : place;                                                                                  \
    }

/* `drops` is a constant at every call, so each variant becomes a loop without branches. */
static inline __attribute__((always_inline)) void square(
    const float *restrict x, const int16_t *restrict bits, int64_t row, int64_t c, int32_t least, float scale,
    float *restrict out, int32_t *restrict which, const int drops) {
    for (int64_t j = 0; j < c; j++) {
        float most = VALUE(0);
        int32_t place = 0;
        COMPARE(c, 1)
        COMPARE(row, 2)
        COMPARE(row + c, 3)
        const int stopped = most <= 0.0f;
        out[j] = stopped ? 0.0f : most;
        which[j] = stopped ? 4 : place;
    }
}

/* An activation is kept if its 16 bits are at least `least`; without bits all are kept. */
void drcl_pool(int32_t threads, int64_t n, int64_t h, int64_t w, int64_t c, const float *x, const int16_t *bits,
               int32_t least, float scale, float *out, int32_t *which) {
    const int64_t high = h / 2, wide = w / 2;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n * high; i++) {
        const int64_t from = (i / high * h + 2 * (i % high)) * w * c, to = i * wide * c;
        for (int64_t q = 0; q < wide; q++) {
            const int64_t a = from + 2 * q * c, b = to + q * c;
            if (bits)
                square(x + a, bits + a, w * c, c, least, scale, out + b, which + b, 1);
            else
                square(x + a, 0, w * c, c, least, scale, out + b, which + b, 0);
        }
    }
}

/* The gradient with respect to x, from that with respect to out. */
void drcl_unpool(int32_t threads, int64_t n, int64_t h, int64_t w, int64_t c, const float *g, const int32_t *which,
                 float scale, float *out) {
    const int64_t high = h / 2, wide = w / 2;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        for (int64_t r = 0; r < high; r++) {
            float *restrict to = out + (i * h + 2 * r) * w * c;
            for (int64_t q = 0; q < wide; q++) {
                const int64_t from = ((i * high + r) * wide + q) * c;
                const float *restrict given = g + from;
                const int32_t *restrict place = which + from;
                float *restrict upper = to + 2 * q * c, *restrict lower = upper + w * c;
                for (int64_t j = 0; j < c; j++) {
                    const float v = given[j] * scale;
                    upper[j] = place[j] == 0 ? v : 0.0f;
                    upper[c + j] = place[j] == 1 ? v : 0.0f;
                    lower[j] = place[j] == 2 ? v : 0.0f;
                    lower[c + j] = place[j] == 3 ? v : 0.0f;
                }
            }
            if (w % 2) /* the last column is in no square */
                for (int64_t j = (w - 1) * c; j < w * c; j++) to[j] = to[w * c + j] = 0.0f;
        }
        if (h % 2)
            for (int64_t j = (h - 1) * w * c; j < h * w * c; j++) out[i * h * w * c + j] = 0.0f;
    }
}
