/* The search for the fundus disc, the resampling of its square and the measures of the quality
 * gate, compiled.
 *
 * The same as fundus_search.py, fundus_measures.py and Pillow, which say what is done and why, and
 * which run where this is missing; tests hold each to the other. All pixels, counts and levels are
 * equal to the bit. The fit's sums are added in another order than NumPy's, which moves a circle by
 * less than a millionth of a pixel.
 *
 * Freestanding C99: no libc, no headers but the compiler's own, nothing allocated, nothing kept
 * between calls, so that any thread with 512 KiB of stack may call it (by default they have 8 MiB)
 * and one source serves every architecture. Compiled without contraction to fused operations:
 * floating point is the same everywhere.
 */

#include <stddef.h>
#include <stdint.h>
#if defined(__x86_64__) && !defined(WITHOUT_AVX2)
#define HAS_TWO_FORMS
#include <cpuid.h>
#endif

#define API __attribute__((visibility("default")))
#define INLINED static inline __attribute__((always_inline))
/* A frame of its own, which the other form of the same function does not stand on. */
#define APART static __attribute__((noinline))

/* A number of this very source, by which kernel.py knows that the two fit; see build_kernel.py. */
#ifndef DR_KERNEL_VERSION
#define DR_KERNEL_VERSION 0
#endif

enum {
    /* Of fundus_search.py. */
    LONGEST_SIDE = 144,
    SHORTEST_SIDE = 16,
    LONGEST_SCAN = 4 * LONGEST_SIDE,
    HYPOTHESES = 64,
    SCORED_POINTS = 128,
    ANGLE_BINS = 64,
    MIN_CONTOUR_POINTS = 24,
    FRAME_EDGE = 2,
    MIN_SAMPLED = 64,
    RED_BACKGROUND = 64,
    FILTERED_GREY = 128,
    FILTERED_TOLERANCE = 8,
    FRAME_VARIATION = 12,
    FRAME_CONTRAST = 10,
    /* Of pictures in memory: a pixel is red, green, blue and a byte that counts for nothing. */
    PIXEL_BYTES = 4,
    WIDEST = 4096,
    MOST_TAPS = 16,
    WIDEST_RESULT = 1024,
    WEIGHT_BITS = 22,
    /* Of fundus_measures.py. */
    WASHED_OUT = 243,
    MOST_SAMPLES = 128 * 128,
    VESSEL_SIDE = 224,
    VESSEL_MARGIN = 24,
    VESSEL_COLUMNS = VESSEL_SIDE - 2 * VESSEL_MARGIN,
    LINE_REACH = 10,
    DIRECTIONS = 8,
    LONGEST_LINE = 4,
    MOST_CONTRAST = LONGEST_LINE * 255 + 1,
    GLANCE_ROWS = 16,
    COUNTED_ROWS = 4
};

#define MIN_FILL 0.40
#define MIN_FILTERED_FILL 0.10
#define MAX_OUTSIDE 0.12
#define MIN_ARC 0.45
#define MIN_RADIUS_SHARE 0.06
#define MAX_RADIUS_SHARE 0.85
#define AGREEMENT 0.85
#define GLANCE_FACTOR 1.5
/* Losses as near as that are equal, as those of mirrored circles are: the first one counts. */
#define SAME_LOSS 1e-9

API int dr_kernel_version(void);
API int dr_search(const uint8_t *rgb, int height, int width, const double *triplets,
                  const double *angles, double *found);
typedef struct Picture Picture;
API int dr_find(const Picture *picture, int picture_width, int picture_height, int left, int top,
                int width, int height, int factor, const double *triplets, const double *angles,
                double *found);
API int dr_resize(const Picture *picture, int width, int height, const float *box, int bilinear,
                  uint8_t *result, int result_width, int result_height, int result_row_bytes);
API int dr_measure(const uint8_t *rgb, int side, int margin, int step, int sharp_margin,
                   double hidden, double *measures);
API double dr_vesselness(const uint8_t *green, int stride, double least);

/* Compilers make calls of these from loops and copies, wherever they see fit. */
#if defined(__GNUC__) && !defined(__clang__)
#define NO_IDIOM __attribute__((optimize("no-tree-loop-distribute-patterns")))
#else
#define NO_IDIOM
#endif

__attribute__((visibility("hidden"), used)) NO_IDIOM void *memset(void *to, int value, size_t size)
{
    volatile uint8_t *bytes = to;
    for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)value;
    return to;
}

__attribute__((visibility("hidden"), used)) NO_IDIOM void *memcpy(void *restrict to,
                                                                  const void *restrict from,
                                                                  size_t size)
{
    volatile uint8_t *bytes = to;
    const uint8_t *source = from;
    for (size_t i = 0; i < size; i++) bytes[i] = source[i];
    return to;
}

int dr_kernel_version(void) { return DR_KERNEL_VERSION; }

/* Loops over bytes are compiled a second time for processors with AVX2, which is most of those of
 * x86-64; integers come out the same. Those of the other architecture have what they need. */
#ifdef HAS_TWO_FORMS
#define WITH_AVX2 __attribute__((target("avx2")))

static int has_avx2(void)
{
    static volatile int known; /* 0: not yet; 1: no; 2: yes. Whoever comes first finds the same. */
    if (!known) {
        unsigned a, b, c, d, low, high;
        int has = 0;
        /* The system must save the wide registers, too. */
        if (__get_cpuid(1, &a, &b, &c, &d) && (c & bit_OSXSAVE)) {
            __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
            has = (low & 6) == 6 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2);
        }
        known = 1 + has;
    }
    return known == 2;
}

#define DISPATCH(name, ...) return has_avx2() ? name##_avx2(__VA_ARGS__) : name##_any(__VA_ARGS__)
#else
#define WITH_AVX2
#define DISPATCH(name, ...) return name##_any(__VA_ARGS__)
#endif

static inline int smaller(int a, int b) { return a < b ? a : b; }
static inline int larger(int a, int b) { return a > b ? a : b; }
static inline double least_of(double a, double b) { return a < b ? a : b; }
static inline double most_of(double a, double b) { return a > b ? a : b; }
static inline double absolute(double value) { return value < 0 ? -value : value; }
static inline double root(double value) { return __builtin_sqrt(value); }

/* Of values that are not negative. */
static inline int ceiling(double value)
{
    int whole = (int)value;
    return whole + ((double)whole < value);
}

/* Halves go to the even number, as Python rounds. */
static int rounded(double value)
{
    int whole = (int)value;
    double rest = value - (double)whole;
    if (rest > 0.5 || (rest == 0.5 && (whole & 1))) whole++;
    return whole;
}

/* The least level that at least this share of all counted values does not exceed. */
static int quantile(const int *counts, int levels, int total, double share)
{
    int wanted = larger(1, ceiling(share * (double)total)), below = 0;
    for (int level = 0; level < levels; level++) {
        below += counts[level];
        if (below >= wanted) return level;
    }
    return levels - 1;
}

static void sort_levels(uint8_t *levels, int count)
{
    for (int i = 1; i < count; i++) {
        uint8_t level = levels[i];
        int place = i;
        for (; place > 0 && levels[place - 1] > level; place--) levels[place] = levels[place - 1];
        levels[place] = level;
    }
}

/* ---- the search ------------------------------------------------------------------------- */

typedef struct {
    int height, width, threshold, asks_for_triplets;
    const double *triplets; /* 3 x HYPOTHESES, in [0, 1); NULL until they are asked for */
    const double *bounds;   /* cosines, then sines, of where the angle bins begin */
    const double *centres;  /* the same of their centres */
    uint8_t distance[LONGEST_SIDE * LONGEST_SIDE];
    uint8_t brighter[LONGEST_SIDE * LONGEST_SIDE];
    uint8_t mask[LONGEST_SIDE * LONGEST_SIDE];
    uint8_t padded[(LONGEST_SIDE + 2) * (LONGEST_SIDE + 2)];
    int points;
    double x[LONGEST_SCAN], y[LONGEST_SCAN], squared[LONGEST_SCAN];
    uint8_t inlier[LONGEST_SCAN];
} Search;

typedef struct {
    double x, y, radius, arc;
} Disc;

/* Least squares of a circle: x^2 + y^2 = a x + b y + c. */
typedef struct {
    double a, b, c;
} Equation;

typedef struct {
    double xx, xy, yy, x, y, xs, ys, s, one;
} Products;

static int solve(const Products *p, Equation *circle)
{
    double c00 = p->yy * p->one - p->y * p->y;
    double c01 = p->x * p->y - p->xy * p->one;
    double c02 = p->xy * p->y - p->x * p->yy;
    double determinant = p->xx * c00 + p->xy * c01 + p->x * c02;
    if (!(absolute(determinant) > 1e-9 * absolute(p->xx * p->yy * p->one))) return 0;
    double c11 = p->xx * p->one - p->x * p->x;
    double c12 = p->x * p->xy - p->xx * p->y;
    double c22 = p->xx * p->yy - p->xy * p->xy;
    circle->a = (c00 * p->xs + c01 * p->ys + c02 * p->s) / determinant;
    circle->b = (c01 * p->xs + c11 * p->ys + c12 * p->s) / determinant;
    circle->c = (c02 * p->xs + c12 * p->ys + c22 * p->s) / determinant;
    return 1;
}

/* 0 below 2 pixels or above the most. */
static double radius_of(const Equation *circle, double most)
{
    double squared = circle->c + (circle->a * circle->a + circle->b * circle->b) / 4;
    return squared >= 4.0 && squared <= most * most ? root(squared) : 0.0;
}

static inline void add(Products *p, double x, double y, double s, double weight)
{
    double wx = x * weight, wy = y * weight;
    p->xx += wx * x;
    p->xy += wx * y;
    p->yy += wy * y;
    p->x += wx;
    p->y += wy;
    p->xs += wx * s;
    p->ys += wy * s;
    p->s += s * weight;
    p->one += weight;
}

/* Refines a circle, or begins with all points where `start` is NULL; how many points lie on it, or
 * -1 where there is none. */
static int refine(Search *search, const Disc *start, double most, Disc *fit)
{
    static const double scales[] = {3.0, 2.0, 1.3, 1.0};
    const Products nothing = {0, 0, 0, 0, 0, 0, 0, 0, 0};
    int count = search->points;
    double from_x = 0, from_y = 0, radius = 0;
    Equation circle = {0, 0, 0};
    if (start) {
        from_x = start->x;
        from_y = start->y;
        circle.c = start->radius * start->radius;
    } else {
        for (int i = 0; i < count; i++) {
            from_x += search->x[i];
            from_y += search->y[i];
        }
        from_x /= (double)count;
        from_y /= (double)count;
    }
    for (int i = 0; i < count; i++) {
        double x = search->x[i] - from_x, y = search->y[i] - from_y;
        search->squared[i] = x * x + y * y;
    }
    if (!start) {
        Products all = nothing;
        for (int i = 0; i < count; i++)
            add(&all, search->x[i] - from_x, search->y[i] - from_y, search->squared[i], 1.0);
        if (!solve(&all, &circle)) return -1;
    }
    for (int round = 0; round < 4; round++) {
        radius = radius_of(&circle, most);
        if (radius == 0.0) return -1;
        double unit = 2 * radius * scales[round] * most_of(1.0, 0.012 * radius);
        double a = -circle.a / unit, b = -circle.b / unit, c = -circle.c / unit, d = 1 / unit;
        Products weighted = nothing;
        int kept = 0;
        for (int i = 0; i < count; i++) {
            double x = search->x[i] - from_x, y = search->y[i] - from_y, s = search->squared[i];
            double gap = a * x + b * y + d * s + c;
            double weight = 1.0 - gap * gap;
            if (weight > 0.0) {
                kept++;
                add(&weighted, x, y, s, weight * weight);
            }
        }
        if (kept < MIN_CONTOUR_POINTS / 2 || !solve(&weighted, &circle)) return -1;
    }
    radius = radius_of(&circle, most);
    if (radius == 0.0) return -1;
    double unit = 2 * radius * most_of(1.0, 0.02 * radius);
    double a = -circle.a / unit, b = -circle.b / unit, c = -circle.c / unit, d = 1 / unit;
    int inliers = 0;
    for (int i = 0; i < count; i++) {
        double x = search->x[i] - from_x, y = search->y[i] - from_y;
        double gap = a * x + b * y + d * search->squared[i] + c;
        search->inlier[i] = absolute(gap) <= 1.0;
        inliers += search->inlier[i];
    }
    fit->x = from_x + circle.a / 2;
    fit->y = from_y + circle.b / 2;
    fit->radius = radius;
    return inliers;
}

/* The circle through three points that is near the most others; 0 where there is none. */
static int best_hypothesis(const Search *search, double least, double most, Disc *best)
{
    int every = (search->points + SCORED_POINTS - 1) / SCORED_POINTS;
    int scored = (search->points + every - 1) / every, usable = 0;
    double smallest = 0, losses[HYPOTHESES];
    Disc circles[HYPOTHESES];
    for (int index = 0; index < HYPOTHESES; index++) {
        int i = every * (int)(search->triplets[index] * scored);
        int j = every * (int)(search->triplets[HYPOTHESES + index] * scored);
        int k = every * (int)(search->triplets[2 * HYPOTHESES + index] * scored);
        double bx = search->x[j] - search->x[i], by = search->y[j] - search->y[i];
        double cx = search->x[k] - search->x[i], cy = search->y[k] - search->y[i];
        double area = 2 * (bx * cy - by * cx);
        if (!(absolute(area) > 1e-9)) continue;
        double b_squared = bx * bx + by * by, c_squared = cx * cx + cy * cy;
        double ux = (cy * b_squared - by * c_squared) / area;
        double uy = (bx * c_squared - cx * b_squared) / area;
        double radius = root(ux * ux + uy * uy);
        if (!(radius >= least && radius <= most)) continue;
        double x = ux + search->x[i], y = uy + search->y[i];
        double unit = 2 * radius * most_of(1.0, 0.02 * radius);
        double a = -2 * x / unit, b = -2 * y / unit, d = 1 / unit;
        double c = (x * x + y * y - radius * radius) / unit;
        double loss = 0;
        for (int p = 0; p < search->points; p += every) {
            double px = search->x[p], py = search->y[p];
            double gap = absolute(a * px + b * py + c + d * (px * px + py * py));
            loss += least_of(gap, 1.0);
        }
        /* Of those that are as near as the nearest, the first is what NumPy takes, too. */
        losses[usable] = loss;
        circles[usable].x = x;
        circles[usable].y = y;
        circles[usable++].radius = radius;
        if (usable == 1 || loss < smallest) smallest = loss;
    }
    for (int index = 0; index < usable; index++)
        if (losses[index] <= smallest + SAME_LOSS) {
            *best = circles[index];
            break;
        }
    return usable;
}

/* How many points lie on the circle found, or -1. */
static int fit_circle(Search *search, double least, double most, Disc *fit)
{
    int inliers = refine(search, NULL, most, fit);
    if (inliers >= 0 && inliers >= AGREEMENT * search->points)
        return fit->radius >= least ? inliers : -1;
    Disc start = {0, 0, 0, 0};
    if (!search->triplets) {
        search->asks_for_triplets = 1;
        return -1;
    }
    if (!best_hypothesis(search, least, most, &start)) return -1;
    return refine(search, &start, most, fit);
}

/* Marks what stands out and keeps at least half of its 3 x 3 neighbourhood. */
static void mark(Search *search, const uint8_t *distance)
{
    int height = search->height, width = search->width, wide = width + 2;
    uint8_t *padded = search->padded;
    for (int row = 0; row < height; row++) {
        uint8_t *to = padded + (row + 1) * wide;
        const uint8_t *from = distance + row * width;
        for (int column = 0; column < width; column++)
            to[column + 1] = from[column] > search->threshold;
        to[0] = to[1];
        to[wide - 1] = to[wide - 2];
    }
    for (int column = 0; column < wide; column++) {
        padded[column] = padded[wide + column];
        padded[(height + 1) * wide + column] = padded[height * wide + column];
    }
    for (int row = 0; row < height; row++) {
        const uint8_t *above = padded + row * wide, *here = above + wide, *below = here + wide;
        uint8_t across[LONGEST_SIDE + 2];
        uint8_t *to = search->mask + row * width;
        for (int column = 0; column < wide; column++)
            across[column] = (uint8_t)(above[column] + here[column] + below[column]);
        for (int column = 0; column < width; column++) {
            uint8_t count = (uint8_t)(across[column] + across[column + 1] + across[column + 2]);
            to[column] = here[column + 1] & (count >= 5);
        }
    }
}

/* The first marked pixel of a way across the thumbnail, within the pixel by its coverage; 0 where
 * the way has no edge. */
static int edge(const uint8_t *mask, const uint8_t *distance, int step, int length, double *along)
{
    int first = 0;
    while (first < length && !mask[first * step]) first++;
    /* Neither an empty way nor one that begins marked shows an edge. */
    if (first >= length || first <= 1 || first >= length - 3) return 0;
    const uint8_t *at = distance + first * step;
    int plateau = larger(at[2 * step], at[3 * step]);
    int covered = smaller(at[-step], plateau) + smaller(at[0], plateau) + smaller(at[step], plateau);
    *along = (double)first + 2.0 - (double)covered / (double)larger(plateau, 1);
    return 1;
}

static void contour(Search *search, const uint8_t *distance)
{
    int height = search->height, width = search->width, count = 0;
    double along;
    for (int right = 0; right < 2; right++)
        for (int row = 0; row < height; row++) {
            int start = row * width + (right ? width - 1 : 0);
            if (!edge(search->mask + start, distance + start, right ? -1 : 1, width, &along))
                continue;
            search->x[count] = right ? -along + width : along;
            search->y[count++] = row + 0.5;
        }
    for (int bottom = 0; bottom < 2; bottom++)
        for (int column = 0; column < width; column++) {
            int start = column + (bottom ? (height - 1) * width : 0);
            int step = bottom ? -width : width;
            if (!edge(search->mask + start, distance + start, step, height, &along)) continue;
            search->x[count] = column + 0.5;
            search->y[count++] = bottom ? -along + height : along;
        }
    search->points = count;
}

/* Which of the bins of equal angle from -pi on holds this direction: the last that begins at or
 * before it. The bins begin in order around the circle, so halving finds it. */
static int angle_bin(const double *bounds, double x, double y)
{
    const double *cosines = bounds, *sines = bounds + ANGLE_BINS;
    /* The angle of (-r, 0) is pi, which is counted as -pi. */
    int low = y > 0 || (y == 0 && x > 0) ? ANGLE_BINS / 2 : 0, high = low + ANGLE_BINS / 2;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (cosines[middle] * y - sines[middle] * x >= 0)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static double arc_fraction(const Search *search, const Disc *disc, int inliers)
{
    uint8_t seen[ANGLE_BINS];
    double width = search->width, height = search->height;
    if (inliers <= 0) return 0.0;
    for (int bin = 0; bin < ANGLE_BINS; bin++) seen[bin] = 0;
    for (int i = 0; i < search->points; i++)
        if (search->inlier[i])
            seen[angle_bin(search->bounds, search->x[i] - disc->x, search->y[i] - disc->y)] = 1;
    double nearest = least_of(least_of(disc->x, disc->y),
                              least_of(width - disc->x, height - disc->y));
    int all_inside = nearest - disc->radius > FRAME_EDGE, total = 0, marked = 0;
    for (int bin = 0; bin < ANGLE_BINS; bin++) {
        double x = disc->x + disc->radius * search->centres[bin];
        double y = disc->y + disc->radius * search->centres[ANGLE_BINS + bin];
        if (all_inside || (x > FRAME_EDGE && x < width - FRAME_EDGE && y > FRAME_EDGE
                           && y < height - FRAME_EDGE)) {
            total++;
            marked += seen[bin];
        }
    }
    /* A disc whose edge lies almost wholly outside the frame leaves too little to trust. */
    return total < ANGLE_BINS / 8 ? 0.0 : (double)marked / (double)total;
}

static int locate(Search *search, const uint8_t *distance, double least_fill, Disc *disc)
{
    int height = search->height, width = search->width, longest = larger(height, width);
    mark(search, distance);
    contour(search, distance);
    if (search->points < MIN_CONTOUR_POINTS) return 0;
    int inliers =
        fit_circle(search, MIN_RADIUS_SHARE * longest, MAX_RADIUS_SHARE * longest, disc);
    if (inliers < 0) return 0;
    disc->arc = arc_fraction(search, disc, inliers);
    if (disc->arc < MIN_ARC) return 0;
    int step = smaller(height, width) >= MIN_SAMPLED ? 2 : 1;
    float x = (float)disc->x, y = (float)disc->y;
    double within = 0.95 * disc->radius, beyond = 1.05 * disc->radius + 1;
    float inner = (float)(within * within), outer = (float)(beyond * beyond);
    int inside = 0, filled = 0, outside = 0, stray = 0;
    for (int row = 0; row < height; row += step) {
        float down = ((float)row + 0.5f) - y, squared_down = down * down;
        for (int column = 0; column < width; column += step) {
            float across = ((float)column + 0.5f) - x;
            float squared = squared_down + across * across;
            int marked = search->mask[row * width + column];
            inside += squared <= inner;
            filled += (squared <= inner) & marked;
            outside += squared > outer;
            stray += (squared > outer) & marked;
        }
    }
    if (inside == 0) return 0;
    return !((double)filled / inside < least_fill
             || (double)stray / larger(1, outside) > MAX_OUTSIDE);
}

/* Largest channel difference from the darkest corner, and the level that stands out from it. */
static void measure_distance(Search *search, const uint8_t *rgb, uint8_t background[3])
{
    enum { MOST_CORNER = (LONGEST_SIDE / 24) * (LONGEST_SIDE / 24) };
    int height = search->height, width = search->width;
    int size = larger(3, smaller(height, width) / 24), pixels = size * size, middle = pixels / 2;
    uint8_t ordered[4][3][MOST_CORNER];
    int darkest = 0, darkest_level = 256;
    for (int corner = 0; corner < 4; corner++) {
        int top = corner / 2 ? height - size : 0, left = corner % 2 ? width - size : 0, level = 0;
        for (int channel = 0; channel < 3; channel++) {
            uint8_t *levels = ordered[corner][channel];
            for (int i = 0; i < pixels; i++)
                levels[i] = rgb[((top + i / size) * width + left + i % size) * 3 + channel];
            sort_levels(levels, pixels);
            level = larger(level, levels[middle]);
        }
        if (level < darkest_level) {
            darkest = corner;
            darkest_level = level;
        }
    }
    int most = 0;
    for (int channel = 0; channel < 3; channel++) {
        const uint8_t *levels = ordered[darkest][channel];
        background[channel] = levels[middle];
        most = larger(most, larger(levels[pixels - 1] - levels[middle], levels[middle] - levels[0]));
    }
    int red = background[0], green = background[1], blue = background[2];
    int counts[256];
    for (int level = 0; level < 256; level++) counts[level] = 0;
    for (int i = 0; i < height * width; i++) {
        int r = rgb[3 * i] - red, g = rgb[3 * i + 1] - green, b = rgb[3 * i + 2] - blue;
        r = r < 0 ? -r : r;
        g = g < 0 ? -g : g;
        b = b < 0 ? -b : b;
        search->distance[i] = (uint8_t)larger(larger(r, g), b);
    }
    for (int row = 0; row < height; row += 2)
        for (int column = 0; column < width; column += 2)
            counts[search->distance[row * width + column]]++;
    int sampled = ((height + 1) / 2) * ((width + 1) / 2);
    double least = most_of(4.0, 0.12 * quantile(counts, 256, sampled, 0.95));
    if (6.0 * 1.4826 * most > least) {
        uint8_t noise[MOST_CORNER];
        int top = darkest / 2 ? height - size : 0, left = darkest % 2 ? width - size : 0;
        for (int i = 0; i < pixels; i++)
            noise[i] = search->distance[(top + i / size) * width + left + i % size];
        sort_levels(noise, pixels);
        least = most_of(least, 6.0 * 1.4826 * noise[middle]);
    }
    search->threshold = (int)least;
}

static int is_like(const uint8_t *pixel, const uint8_t *other)
{
    for (int channel = 0; channel < 3; channel++) {
        int gap = pixel[channel] - other[channel];
        if (gap > FRAME_VARIATION || gap < -FRAME_VARIATION) return 0;
    }
    return 1;
}

/* Rows and columns of a thumbnail; the last ones are not part of it. */
typedef struct {
    int top, bottom, left, right;
} Box;

/* The colour of an edge that is not dark and of one colour; NULL where there is none. Edges are
 * left, top, right, bottom; the middle of one stands for its colour. */
static const uint8_t *edge_colour(const uint8_t *rgb, int height, int width)
{
    const int row = 3 * width;
    const struct {
        const uint8_t *first;
        int step, count;
    } edges[4] = {
        {rgb, row, height},
        {rgb, 3, width},
        {rgb + 3 * (width - 1), row, height},
        {rgb + (height - 1) * row, 3, width},
    };
    for (int i = 0; i < 4; i++) {
        const uint8_t *middle = edges[i].first + (edges[i].count / 2) * edges[i].step;
        int alike = larger(larger(middle[0], middle[1]), middle[2]) >= FRAME_CONTRAST;
        for (int at = 0; at < edges[i].count && alike; at++)
            alike = is_like(edges[i].first + at * edges[i].step, middle);
        if (alike) return middle;
    }
    return NULL;
}

/* What a frame of one colour surrounds; 0 where nothing is to be cut. See fundus_search.py. */
static int without_frame(const uint8_t *rgb, int height, int width, Box *inner)
{
    const uint8_t *colour = edge_colour(rgb, height, width);
    if (!colour) return 0;
    Box others = {height, 0, width, 0};
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            if (!is_like(rgb + 3 * (y * width + x), colour)) {
                others.top = smaller(others.top, y);
                others.bottom = y + 1;
                others.left = smaller(others.left, x);
                others.right = larger(others.right, x + 1);
            }
    if (!others.bottom) return 0;
    /* One pixel further in on each cut side: the border's pixel is half frame, half photograph. */
    inner->top = others.top + (others.top > 0);
    inner->left = others.left + (others.left > 0);
    inner->bottom = others.bottom - (others.bottom < height);
    inner->right = others.right - (others.right < width);
    const int high = inner->bottom - inner->top, wide = inner->right - inner->left;
    if (smaller(high, wide) < SHORTEST_SIDE || (high == height && wide == width)) return 0;
    int darkest = 255;
    for (int corner = 0; corner < 4; corner++) {
        int y = corner & 1 ? inner->bottom - 1 : inner->top;
        const uint8_t *at = rgb + 3 * (y * width + (corner & 2 ? inner->right - 1 : inner->left));
        darkest = smaller(darkest, larger(larger(at[0], at[1]), at[2]));
    }
    return darkest <= larger(larger(colour[0], colour[1]), colour[2]) - FRAME_CONTRAST;
}

static int search_disc(Search *search, const uint8_t *rgb, Disc *disc)
{
    uint8_t background[3];
    measure_distance(search, rgb, background);
    if (background[0] - background[2] > RED_BACKGROUND) return 0;
    int filtered = 1;
    for (int channel = 0; channel < 3; channel++) {
        int gap = background[channel] - FILTERED_GREY;
        filtered &= gap <= FILTERED_TOLERANCE && gap >= -FILTERED_TOLERANCE;
    }
    if (!filtered) return locate(search, search->distance, MIN_FILL, disc);
    for (int i = 0; i < search->height * search->width; i++) {
        int level = larger(larger(rgb[3 * i], rgb[3 * i + 1]), rgb[3 * i + 2]);
        search->brighter[i] = (uint8_t)(larger(level, FILTERED_GREY) - FILTERED_GREY);
    }
    Disc blanked;
    int is_ringed = locate(search, search->brighter, MIN_FILTERED_FILL, disc);
    int is_blanked = locate(search, search->distance, MIN_FILTERED_FILL, &blanked);
    if (is_blanked && (!is_ringed || blanked.arc > disc->arc)) *disc = blanked;
    return is_ringed || is_blanked;
}

/* Looks for the disc in a thumbnail.
 *
 * rgb: height x width x 3 bytes. triplets: 3 x 64 numbers in [0, 1), or NULL. angles: cosines and sines of
 * the beginnings, then of the centres, of 64 bins of equal angle from -pi on; 4 x 64 numbers.
 * found: x, y, radius and arc fraction of a disc are written there, and left, top, right and bottom of
 * what a frame surrounds. Returns 1 where there is a disc, 2 more where there is a frame; -1 for a
 * size that it does not take, and -2 where it cannot do without triplets.
 */
int dr_search(const uint8_t *rgb, int height, int width, const double *triplets,
              const double *angles, double *found)
{
    if (smaller(height, width) < SHORTEST_SIDE || larger(height, width) > LONGEST_SIDE) return -1;
    Search search;
    Disc disc = {0, 0, 0, 0};
    search.height = height;
    search.width = width;
    search.asks_for_triplets = 0;
    search.triplets = triplets;
    search.bounds = angles;
    search.centres = angles + 2 * ANGLE_BINS;
    int is_found = search_disc(&search, rgb, &disc);
    if (search.asks_for_triplets) return -2;
    found[0] = disc.x;
    found[1] = disc.y;
    found[2] = disc.radius;
    found[3] = disc.arc;
    Box inner = {0, 0, 0, 0};
    int is_framed = without_frame(rgb, height, width, &inner);
    found[4] = inner.left;
    found[5] = inner.top;
    found[6] = inner.right;
    found[7] = inner.bottom;
    return is_found + 2 * is_framed;
}

/* ---- pictures in memory ------------------------------------------------------------------ */

/* A picture as Pillow shows it: an ArrowArray of the Arrow C data interface, whose only child has
 * the samples, four for each pixel, row after row. */
struct Picture {
    int64_t length, nulls, offset, buffer_count, child_count;
    const void **buffers;
    Picture **children;
    Picture *dictionary;
    void (*release)(Picture *);
    void *private_data;
};

/* The first sample; NULL for what is laid out in another way, or is of another size. */
static const uint8_t *pixels_of(const Picture *picture, int width, int height)
{
    int64_t pixels = (int64_t)width * height;
    if (!picture || picture->length != pixels || picture->offset || picture->child_count != 1)
        return NULL;
    const Picture *samples = picture->children[0];
    if (samples->length != PIXEL_BYTES * pixels || samples->offset || samples->buffer_count != 2)
        return NULL;
    return samples->buffers[1];
}

/* Averages cells of `columns` pixels each, of which `rows` rows have been added up. */
INLINED uint8_t *average(const uint16_t *sums, int cells, int columns, int rows, uint8_t *rgb)
{
    uint32_t count = (uint32_t)(rows * columns), half = count / 2;
    uint32_t multiplier = (uint32_t)(4294967296.0f / (float)(256 * count));
    /* Where they fit into 16 bits, the sums of a pixel are added as one number. */
    int fit = count <= 256;
    for (int cell = 0; cell < cells; cell++) {
        uint32_t red = half, green = half, blue = half;
        if (fit) {
            uint64_t all = 0, one;
            for (int i = 0; i < columns; i++, sums += PIXEL_BYTES) {
                __builtin_memcpy(&one, sums, sizeof one);
                all += one;
            }
            red += all & 0xffff;
            green += all >> 16 & 0xffff;
            blue += all >> 32 & 0xffff;
        }
        for (int i = 0; !fit && i < columns; i++, sums += PIXEL_BYTES) {
            red += sums[0];
            green += sums[1];
            blue += sums[2];
        }
        *rgb++ = (uint8_t)(red * multiplier >> 24);
        *rgb++ = (uint8_t)(green * multiplier >> 24);
        *rgb++ = (uint8_t)(blue * multiplier >> 24);
    }
    return rgb;
}

/* Averages squares of factor x factor pixels to bytes of RGB; at the right and at the bottom what
 * there is of them. Rounds as Pillow's `reduce`: by a multiplier of 32 bits that is a float's. */
INLINED void reduce(const uint8_t *pixels, int row_bytes, int width, int height, int factor,
                    uint8_t *rgb)
{
    uint16_t sums[WIDEST * PIXEL_BYTES];
    int whole = width / factor, cells = (width + factor - 1) / factor;
    int values = width * PIXEL_BYTES;
    for (int top = 0; top < height; top += factor) {
        int rows = smaller(factor, height - top);
        for (int i = 0; i < values; i++) sums[i] = 0;
        for (int row = 0; row < rows; row++) {
            const uint8_t *from = pixels + (ptrdiff_t)(top + row) * row_bytes;
            for (int i = 0; i < values; i++) sums[i] = (uint16_t)(sums[i] + from[i]);
        }
        rgb = average(sums, whole, factor, rows, rgb);
        if (whole < cells)
            rgb = average(sums + whole * factor * PIXEL_BYTES, 1, width - whole * factor, rows, rgb);
    }
}

static int reduce_any(const uint8_t *pixels, int row_bytes, int width, int height, int factor,
                      uint8_t *rgb)
{
    reduce(pixels, row_bytes, width, height, factor, rgb);
    return 0;
}

#ifdef HAS_TWO_FORMS
WITH_AVX2 static int reduce_avx2(const uint8_t *pixels, int row_bytes, int width, int height,
                                 int factor, uint8_t *rgb)
{
    reduce(pixels, row_bytes, width, height, factor, rgb);
    return 0;
}
#endif

static int reduce_to(const uint8_t *pixels, int row_bytes, int width, int height, int factor,
                     uint8_t *rgb)
{
    DISPATCH(reduce, pixels, row_bytes, width, height, factor, rgb);
}

/* Looks for the disc within a box of a picture, by its thumbnail.
 *
 * picture: of picture_width x picture_height pixels. left, top, width, height: of the box.
 * factor: so many pixels a side become one of the thumbnail. Others and result: as `dr_search`,
 * with the disc in pixels of the thumbnail.
 */
int dr_find(const Picture *picture, int picture_width, int picture_height, int left, int top,
            int width, int height, int factor, const double *triplets, const double *angles,
            double *found)
{
    const uint8_t *pixels = pixels_of(picture, picture_width, picture_height);
    uint8_t rgb[3 * LONGEST_SIDE * LONGEST_SIDE];
    /* Sums of a column of so many bytes fit into 16 bits. */
    if (!pixels || width > WIDEST || factor < 1 || factor > 256) return -1;
    if (left < 0 || top < 0 || width < 1 || height < 1 || width > picture_width - left
        || height > picture_height - top)
        return -1;
    int small_width = (width + factor - 1) / factor, small_height = (height + factor - 1) / factor;
    if (larger(small_width, small_height) > LONGEST_SIDE) return -1;
    int row_bytes = PIXEL_BYTES * picture_width;
    const uint8_t *from = pixels + (ptrdiff_t)top * row_bytes + PIXEL_BYTES * left;
    reduce_to(from, row_bytes, width, height, factor, rgb);
    return dr_search(rgb, small_height, small_width, triplets, angles, found);
}

/* Which source pixels a pixel of the result is made of, and by how much, in units of 2^-22. */
typedef struct {
    int first, count;
    int32_t weights[MOST_TAPS];
} Taps;

/* For all pixels along one side of the result; 0 where one has too many. Computes as Pillow's
 * `resize`: the filter is widened by the scale where the picture shrinks, its weights sum to 1 and
 * are rounded each. */
static int find_taps(Taps *taps, int source, float begin, float end, int result, int bilinear)
{
    double scale = (double)(end - begin) / result, wide = scale < 1.0 ? 1.0 : scale;
    double reach = (bilinear ? 1.0 : 0.5) * wide, shrunk = 1.0 / wide;
    for (int place = 0; place < result; place++) {
        double centre = begin + (place + 0.5) * scale, sum = 0.0, shares[MOST_TAPS];
        int first = larger(0, (int)(centre - reach + 0.5));
        int count = smaller(source, (int)(centre + reach + 0.5)) - first;
        if (count > MOST_TAPS || count < 0) return 0;
        for (int i = 0; i < count; i++) {
            double away = (i + first - centre + 0.5) * shrunk;
            if (bilinear)
                shares[i] = absolute(away) < 1.0 ? 1.0 - absolute(away) : 0.0;
            else
                shares[i] = away > -0.5 && away <= 0.5 ? 1.0 : 0.0;
            sum += shares[i];
        }
        taps[place].first = first;
        taps[place].count = count;
        for (int i = count; i < MOST_TAPS; i++) taps[place].weights[i] = 0;
        for (int i = 0; i < count; i++) {
            double share = sum != 0.0 ? shares[i] / sum : shares[i];
            taps[place].weights[i] = (int32_t)(0.5 + share * (1 << WEIGHT_BITS));
        }
    }
    return 1;
}

/* No weight is below 0 and their sum is 1 up to its rounding, so that no sum leaves the bytes. */
INLINED uint8_t weighed(int32_t sum)
{
    return (uint8_t)((sum + (1 << (WEIGHT_BITS - 1))) >> WEIGHT_BITS);
}

/* The four bytes of a pixel as integers; the compilers' own vectors, which every architecture has. */
typedef int32_t PixelSums
    __attribute__((vector_size(PIXEL_BYTES * sizeof(int32_t)), aligned(sizeof(int32_t)), may_alias));

/* One row of a picture, resampled to a row of as many pixels as there are taps, each with the same
 * `count` of weights; a count that is known when this is compiled makes it several times faster.
 *
 * Bytes become integers and integers bytes in loops of their own, which compilers turn into wide
 * ones; within the loop over pixels they would take one at a time. The byte that counts for nothing
 * is weighed with the others.
 */
INLINED void resample_row(const uint8_t *from, const Taps *taps, int count, int result,
                          uint8_t *restrict to)
{
    int32_t wide[PIXEL_BYTES * WIDEST], sums[PIXEL_BYTES * WIDEST_RESULT];
    const int before = taps[0].first, values = PIXEL_BYTES * (taps[result - 1].first + count - before);
    from += PIXEL_BYTES * before;
    for (int i = 0; i < values; i++) wide[i] = from[i];
    for (int place = 0; place < result; place++) {
        const int32_t *at = wide + PIXEL_BYTES * (taps[place].first - before);
        PixelSums sum = {0};
        for (int i = 0; i < count; i++, at += PIXEL_BYTES)
            sum += *(const PixelSums *)at * taps[place].weights[i];
        *(PixelSums *)(sums + PIXEL_BYTES * place) = sum;
    }
    for (int i = 0; i < PIXEL_BYTES * result; i++) to[i] = weighed(sums[i]);
}

INLINED void resample_any_row(const uint8_t *from, const Taps *taps, int count, int result,
                              uint8_t *restrict to)
{
    if (count == 2)
        resample_row(from, taps, 2, result, to);
    else if (count == 3)
        resample_row(from, taps, 3, result, to);
    else if (count == 4)
        resample_row(from, taps, 4, result, to);
    else
        resample_row(from, taps, count, result, to);
}

/* A row of the result out of `count` rows; few are added up without a detour through memory. */
INLINED void blend_rows(const uint8_t *const *rows, const int32_t *weights, int count, int values,
                        uint8_t *restrict to)
{
    const uint8_t *a = rows[0], *b = rows[1], *c = rows[2];
    int32_t p = weights[0], q = weights[1], r = weights[2];
    if (count == 2) {
        for (int i = 0; i < values; i++) to[i] = weighed(a[i] * p + b[i] * q);
    } else if (count == 3) {
        for (int i = 0; i < values; i++) to[i] = weighed(a[i] * p + b[i] * q + c[i] * r);
    } else {
        int32_t sums[PIXEL_BYTES * WIDEST_RESULT];
        for (int i = 0; i < values; i++) sums[i] = 0;
        for (int tap = 0; tap < count; tap++) {
            const uint8_t *from = rows[tap];
            int32_t weight = weights[tap];
            for (int i = 0; i < values; i++) sums[i] += from[i] * weight;
        }
        for (int i = 0; i < values; i++) to[i] = weighed(sums[i]);
    }
}

INLINED int resize(const uint8_t *pixels, int width, const Taps *across, const Taps *down,
                   uint8_t *result, int result_width, int result_height, int result_row_bytes)
{
    /* Rows that are resampled along x already; those that one row of the result needs fit. */
    uint8_t ring[MOST_TAPS][PIXEL_BYTES * WIDEST_RESULT], blended[PIXEL_BYTES * WIDEST_RESULT];
    int next = 0;
    for (int row = 0; row < result_height; row++) {
        const Taps *taps = &down[row];
        const uint8_t *rows[MOST_TAPS] = {ring[0], ring[0], ring[0]};
        uint8_t *to = result + (ptrdiff_t)row * result_row_bytes;
        next = larger(next, taps->first);
        for (; next < taps->first + taps->count; next++)
            resample_any_row(pixels + (ptrdiff_t)next * width * PIXEL_BYTES, across,
                             across->count, result_width, ring[next % MOST_TAPS]);
        for (int tap = 0; tap < taps->count; tap++) rows[tap] = ring[(taps->first + tap) % MOST_TAPS];
        blend_rows(rows, taps->weights, taps->count, PIXEL_BYTES * result_width, blended);
        for (int place = 0; place < result_width; place++)
            for (int byte = 0; byte < 3; byte++) to[3 * place + byte] = blended[4 * place + byte];
    }
    return 0;
}

APART int resize_any(const uint8_t *pixels, int width, const Taps *across, const Taps *down,
                     uint8_t *result, int result_width, int result_height, int result_row_bytes)
{
    return resize(pixels, width, across, down, result, result_width, result_height,
                  result_row_bytes);
}

#ifdef HAS_TWO_FORMS
WITH_AVX2 APART int resize_avx2(const uint8_t *pixels, int width, const Taps *across,
                                const Taps *down, uint8_t *result, int result_width,
                                int result_height, int result_row_bytes)
{
    return resize(pixels, width, across, down, result, result_width, result_height,
                  result_row_bytes);
}
#endif

/* Gives all pixels of the result as many weights as the one with the most, by zeros. */
static void level_counts(Taps *taps, int source, int result)
{
    int most = 0;
    for (int place = 0; place < result; place++) most = larger(most, taps[place].count);
    for (int place = 0; place < result; place++) {
        Taps *one = &taps[place];
        /* Nothing beyond the row's end may be read. */
        int ahead = larger(0, one->first + most - source);
        for (int i = most - 1; i >= 0; i--)
            one->weights[i] = i >= ahead && i - ahead < one->count ? one->weights[i - ahead] : 0;
        one->first -= ahead;
        one->count = most;
    }
}

/* Resamples a box of a picture.
 *
 * picture: of width x height pixels. box: left, top, right, bottom within them. bilinear: 1, or 0
 * for the mean of each pixel's area. result: result_height rows of result_width RGB pixels,
 * each row result_row_bytes after the one before. Returns 0, and -1 for what it does not take.
 */
int dr_resize(const Picture *picture, int width, int height, const float *box, int bilinear,
              uint8_t *result, int result_width, int result_height, int result_row_bytes)
{
    Taps across[WIDEST_RESULT], down[WIDEST_RESULT];
    const uint8_t *pixels = pixels_of(picture, width, height);
    int longest = larger(result_width, result_height);
    if (!pixels || smaller(result_width, result_height) < 1 || longest > WIDEST_RESULT) return -1;
    if (!(box[0] >= 0 && box[1] >= 0 && box[0] < box[2] && box[1] < box[3] && box[2] <= width
          && box[3] <= height))
        return -1;
    /* Where the height shrinks by far more, Pillow begins with the columns, which rounds otherwise. */
    if (height > result_height && height - result_height > 2 * (width - result_width)) return -1;
    if (!find_taps(across, width, box[0], box[2], result_width, bilinear)
        || !find_taps(down, height, box[1], box[3], result_height, bilinear))
        return -1;
    level_counts(across, width, result_width);
    DISPATCH(resize, pixels, width, across, down, result, result_width, result_height,
             result_row_bytes);
}

/* ---- the quality gate ------------------------------------------------------------------- */

/* Sorts positive floats by their bits, which have the same order: three passes of 11 bits. */
static void sort_floats(uint32_t *values, uint32_t *other, int count)
{
    for (int shift = 0; shift < 33; shift += 11) {
        int places[2048], next = 0;
        for (int i = 0; i < 2048; i++) places[i] = 0;
        for (int i = 0; i < count; i++) places[values[i] >> shift & 2047]++;
        for (int i = 0; i < 2048; i++) {
            int here = places[i];
            places[i] = next;
            next += here;
        }
        for (int i = 0; i < count; i++) other[places[values[i] >> shift & 2047]++] = values[i];
        uint32_t *sorted = other;
        other = values;
        values = sorted;
    }
}

static inline float as_float(uint32_t bits)
{
    union {
        uint32_t bits;
        float value;
    } both = {bits};
    return both.value;
}

static inline uint32_t as_bits(float value)
{
    union {
        float value;
        uint32_t bits;
    } both = {value};
    return both.bits;
}

INLINED double sharpness(const uint8_t *rgb, int side, int margin)
{
    int inner = side - 2 * margin, row_bytes = 3 * side, rows = 0;
    int64_t bent = 0, level = 0;
    if (inner < 3) return 0.0;
    for (int row = 1; row < inner - 1; row += 2, rows++) {
        const uint8_t *here = rgb + (margin + row) * row_bytes + 3 * margin + 1;
        int row_bent = 0, row_level = 0;
        for (int column = 1; column < inner - 1; column++) {
            const uint8_t *at = here + 3 * column;
            int laplacian = at[-row_bytes] + at[row_bytes] + at[-3] + at[3] - 4 * at[0];
            row_bent += laplacian < 0 ? -laplacian : laplacian;
            row_level += at[0];
        }
        bent += row_bent;
        level += row_level;
    }
    double size = (double)rows * (inner - 2);
    return (double)bent / size / (4 * most_of(1.0, (double)level / size));
}

static double sharpness_any(const uint8_t *rgb, int side, int margin)
{
    return sharpness(rgb, side, margin);
}

#ifdef HAS_TWO_FORMS
WITH_AVX2 static double sharpness_avx2(const uint8_t *rgb, int side, int margin)
{
    return sharpness(rgb, side, margin);
}
#endif

static double sharpness_of(const uint8_t *rgb, int side, int margin)
{
    DISPATCH(sharpness, rgb, side, margin);
}

/* Light, colour and sharpness of a prepared photograph.
 *
 * rgb: side x side x 3 bytes. margin, step: of the sample of the disc. sharp_margin: what the
 * sharpness leaves out on each side. hidden: the share of the disc beyond the frame; below 0
 * where no disc was found. measures: level, dark, washed out, redness, green to red, blue to red,
 * spread and sharpness are written there. Returns 0, and -1 for a sample that it does not take.
 */
int dr_measure(const uint8_t *rgb, int side, int margin, int step, int sharp_margin, double hidden,
               double *measures)
{
    int red_counts[256], green_counts[256], blue_counts[256], peak_counts[256];
    uint32_t ratios[MOST_SAMPLES], sorted[MOST_SAMPLES];
    int wide = (side - 2 * margin + step - 1) / step;
    if (side < 1 || margin < 0 || step < 1 || wide < 1 || wide * wide > MOST_SAMPLES) return -1;
    for (int level = 0; level < 256; level++)
        red_counts[level] = green_counts[level] = blue_counts[level] = peak_counts[level] = 0;
    int count = 0, lit = 0, washed = 0;
    int64_t red_sum = 0, green_sum = 0, blue_sum = 0;
    double half = (double)wide / 2, squared_radius = half * half;
    for (int row = 0; row < wide; row++) {
        double down = row + 0.5 - half;
        const uint8_t *from = rgb + ((margin + row * step) * side + margin) * 3;
        for (int column = 0; column < wide; column++) {
            double across = column + 0.5 - half;
            if (!(down * down + across * across <= squared_radius)) continue;
            const uint8_t *pixel = from + 3 * step * column;
            int red = pixel[0], green = pixel[1], blue = pixel[2];
            count++;
            peak_counts[larger(larger(red, green), blue)]++;
            washed += smaller(red, green) >= WASHED_OUT;
            red_sum += red;
            green_sum += green;
            blue_sum += blue;
            /* Exactly black is what lies beyond the frame or the mask. */
            if (!(red | green)) continue;
            red_counts[red]++;
            green_counts[green]++;
            blue_counts[blue]++;
            ratios[lit++] = as_bits((float)green / (float)larger(red, 8));
        }
    }
    if (count == 0) return -1;
    /* What is beyond the frame is black, and says nothing about the light. */
    int black = peak_counts[0];
    if (hidden >= 0) black = smaller(black, rounded(hidden * count));
    int left = count;
    if (black < count) {
        peak_counts[0] -= black;
        left -= black;
    }
    measures[0] = quantile(peak_counts, 256, left, 0.5);
    int below = ceiling(0.25 * quantile(peak_counts, 256, left, 0.9)), dark = 0;
    for (int level = 0; level < below; level++) dark += peak_counts[level];
    measures[1] = (double)dark / left;
    measures[2] = (double)washed / left;
    double sum = (double)(red_sum + green_sum + blue_sum);
    measures[3] = (double)(red_sum - blue_sum) / most_of(1.0, sum);
    measures[4] = measures[5] = measures[6] = 0.0;
    if (lit > 0) {
        double red = most_of(1.0, quantile(red_counts, 256, lit, 0.5));
        measures[4] = quantile(green_counts, 256, lit, 0.5) / red;
        measures[5] = quantile(blue_counts, 256, lit, 0.5) / red;
        sort_floats(ratios, sorted, lit); /* an odd number of passes: the order is in `sorted` */
        int last = lit - 1;
        float spread = as_float(sorted[(int)(0.9 * last)]) - as_float(sorted[(int)(0.1 * last)]);
        measures[6] = spread;
    }
    measures[7] = sharpness_of(rgb, side, sharp_margin);
    return 0;
}

typedef struct {
    int steps, along, aside; /* in pixels of a picture VESSEL_SIDE wide */
} Line;

#define ALONG(dx, dy) ((dy)*VESSEL_SIDE + (dx))
#define ASIDE(down, across) ((down)*VESSEL_SIDE + (across))

/* The shorter ones first. Beside a line lie those 3 pixels from it, at a right angle. */
static const Line LINES[DIRECTIONS] = {
    {2, ALONG(2, 1), ASIDE(3, -1)},  {2, ALONG(1, 2), ASIDE(1, -3)},
    {2, ALONG(-1, 2), ASIDE(-1, -3)}, {2, ALONG(-2, 1), ASIDE(-3, -1)},
    {4, ALONG(1, 0), ASIDE(3, 0)},   {4, ALONG(0, 1), ASIDE(0, -3)},
    {4, ALONG(1, 1), ASIDE(2, -2)},  {4, ALONG(1, -1), ASIDE(2, 2)},
};

/* Adds up `steps` pixels along a line for each of a row's pixels. */
INLINED void add_up(const int16_t *from, int along, int steps, int16_t *restrict sums)
{
    if (steps == 2)
        for (int i = 0; i < VESSEL_COLUMNS; i++)
            sums[i] = (int16_t)(from[i] + from[i + along]);
    else
        for (int i = 0; i < VESSEL_COLUMNS; i++)
            sums[i] = (int16_t)(from[i] + from[i + along] + from[i + 2 * along]
                                + from[i + 3 * along]);
}

/* By how much lines through a row's pixels are darker, and brighter, than the lines beside them. */
INLINED void line_contrast(const int16_t *row, int16_t *restrict dark, int16_t *restrict bright)
{
    for (int i = 0; i < VESSEL_COLUMNS; i++) dark[i] = bright[i] = 0;
    for (int direction = 0; direction < DIRECTIONS; direction++) {
        const Line *line = &LINES[direction];
        int16_t sums[2][3][VESSEL_COLUMNS];
        if (direction > 0 && LINES[direction - 1].steps != line->steps)
            for (int i = 0; i < VESSEL_COLUMNS; i++) {
                dark[i] = (int16_t)(dark[i] * (LONGEST_LINE / 2));
                bright[i] = (int16_t)(bright[i] * (LONGEST_LINE / 2));
            }
        for (int part = 0; part < 2; part++)
            for (int side = 0; side < 3; side++) {
                const int16_t *from =
                    row - part * line->steps * line->along + (side - 1) * line->aside;
                add_up(from, line->along, line->steps, sums[part][side]);
            }
        for (int i = 0; i < VESSEL_COLUMNS; i++) {
            int16_t darker[2], brighter[2];
            for (int part = 0; part < 2; part++) {
                int16_t one = sums[part][0][i], centre = sums[part][1][i], two = sums[part][2][i];
                int16_t low = one < two ? one : two, high = one < two ? two : one;
                darker[part] = (int16_t)(low - centre);
                brighter[part] = (int16_t)(centre - high);
            }
            int16_t down = darker[0] < darker[1] ? darker[0] : darker[1];
            int16_t up = brighter[0] < brighter[1] ? brighter[0] : brighter[1];
            dark[i] = dark[i] > down ? dark[i] : down;
            bright[i] = bright[i] > up ? bright[i] : up;
        }
    }
}

INLINED double line_ratio(const int16_t *green, int row_step)
{
    int dark_counts[MOST_CONTRAST], bright_counts[MOST_CONTRAST], total = 0;
    for (int i = 0; i < MOST_CONTRAST; i++) dark_counts[i] = bright_counts[i] = 0;
    double half = (double)VESSEL_COLUMNS / 2;
    for (int row = 0; row < VESSEL_COLUMNS; row += row_step) {
        int16_t dark[VESSEL_COLUMNS], bright[VESSEL_COLUMNS];
        const int16_t *from = green + (VESSEL_MARGIN + row) * VESSEL_SIDE + VESSEL_MARGIN;
        double down = row + 0.5 - half;
        line_contrast(from, dark, bright);
        for (int column = 0; column < VESSEL_COLUMNS; column++) {
            double across = column + 0.5 - half;
            if (!from[column] || !(down * down + across * across <= half * half)) continue;
            dark_counts[dark[column]]++;
            bright_counts[bright[column]]++;
            total++;
        }
    }
    if (total == 0) return 0.0;
    /* Sums of four pixels; half a level of contrast is what rounding alone gives. */
    return quantile(dark_counts, MOST_CONTRAST, total, 0.95)
           / most_of(2.0, quantile(bright_counts, MOST_CONTRAST, total, 0.95));
}

INLINED double vesselness(const uint8_t *green, int stride, double least)
{
    int16_t levels[VESSEL_SIDE * VESSEL_SIDE];
    if (stride == 3) /* known when it is compiled, it takes a third of the time */
        for (int i = 0; i < VESSEL_SIDE * VESSEL_SIDE; i++) levels[i] = green[3 * i];
    else
        for (int i = 0; i < VESSEL_SIDE * VESSEL_SIDE; i++)
            levels[i] = green[(ptrdiff_t)stride * i];
    double glance = line_ratio(levels, GLANCE_ROWS);
    /* A few rows tell where a picture is far above what is asked for. */
    return glance >= GLANCE_FACTOR * least ? glance : line_ratio(levels, COUNTED_ROWS);
}

static double vesselness_any(const uint8_t *green, int stride, double least)
{
    return vesselness(green, stride, least);
}

#ifdef HAS_TWO_FORMS
WITH_AVX2 static double vesselness_avx2(const uint8_t *green, int stride, double least)
{
    return vesselness(green, stride, least);
}
#endif

/* How much more dark thin lines stand out than bright ones, in 224 x 224 levels of green that lie
 * `stride` bytes apart. */
double dr_vesselness(const uint8_t *green, int stride, double least)
{
    DISPATCH(vesselness, green, stride, least);
}
