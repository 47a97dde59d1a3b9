// Gradients of the dynamics' parameters from what rollouts stored, for Hopper's tensor cores; see gradients_hopper.py.
//
// A filter's gradient is a product over all positions of all states: inputs (64 channels × positions) · the outputs'
// gradients (positions × 64 channels), these shifted by one of 9 taps. Inputs are left operands, from registers: the
// fragments are stored as a product wants them. Gradients lie in shared memory as 8 planes of 8 channels, a unit of 16
// bytes per slot; a row is 8 slots, the last one zero, so that a shift to the side lands on zeros at a border and every
// shift is an address. A product takes the same row of two states, 16 slots. Rows that a shift moves out are left out.
//
// Half of the blocks take the first convolution, half the second, each a share of all states. Three warpgroups
// multiply, one per column of taps; in a fourth one warp copies states to shared memory, up to STAGES pairs ahead, and
// three add up the first convolution's gradients by action. `add_partials` adds up what the blocks found, in a fixed
// order: the same inputs give the same bits.
//
// hopper.cuh comes first; `multiply_rows` and `wait_all_products` come from the host.

constexpr int PLANE = 7 * 8 + 1;                  // units; one stays zero
constexpr int STATE = 8 * PLANE + 1;              // one unit of zeros before the first plane
constexpr int STAGE = 2 * (STATE + FRAGMENT);     // two states' gradients, then their inputs
constexpr int STAGES = 4;
constexpr int MULTIPLYING = 3 * 128, THREADS = MULTIPLYING + 128, ADDING = 96;
constexpr u32 STAGES_AT = STAGES * 16;            // behind two barriers per stage: it is full, it is free again
constexpr u32 SUMS_AT = STAGES_AT + STAGES * STAGE * 16; // (actions, PARTS, 64) floats
constexpr int PARTS = 12;                         // see `add_by_action`
constexpr int ALL_BAR = 0, ADDING_BAR = 1;        // named barriers: of all threads, of the warps that add
constexpr int FOUND = 9 * 64 * 64 / 4;            // float4 of what a block finds for its filter
constexpr int REGIONS = 9 * 64 / 4;               // float4 of what it finds for an action

__device__ __forceinline__ u32 full_at(u32 shared, int stage) { return shared + stage * 16; }
__device__ __forceinline__ u32 free_at(u32 shared, int stage) { return shared + stage * 16 + 8; }
__device__ __forceinline__ u32 stage_at(u32 shared, int stage) { return shared + STAGES_AT + stage * STAGE * 16; }
__device__ __forceinline__ void wait_at(u32 barrier, int round) { // until the barrier's phase number `round` is over
    while (!passed(barrier, round & 1)) {}
}

// One warp: all pairs in [begin, end) to shared memory.
__device__ __forceinline__ void copy_pairs(u32 shared, const uint4 *inputs, const uint4 *gradients, int begin, int end,
                                           int count) {
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < end - begin; ++i) {
        const int stage = i % STAGES;
        const u32 at = stage_at(shared, stage);
        if (i >= STAGES) wait_at(free_at(shared, stage), i / STAGES - 1);
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            const int n = 2 * (begin + i) + s < count ? 2 * (begin + i) + s : count - 1;
            const uint4 *from = gradients + (u64)n * CHUNKS + lane;
            const u32 image = at + (s * STATE + 1 + lane % 8 * PLANE) * 16;
#pragma unroll
            for (int round = 0; round < 13; ++round) {
                const int position = round * 4 + lane / 8;
                if (position < POSITIONS) copy_to_shared(image + (position + position / 7) * 16, from + round * 32);
            }
            const u32 fragments = at + (2 * STATE + s * FRAGMENT + lane) * 16;
#pragma unroll
            for (int round = 0; round < FRAGMENT / 32; ++round)
                copy_to_shared(fragments + round * 512, inputs + (u64)n * FRAGMENT + lane + round * 32);
        }
        arrive_after_copies(full_at(shared, stage));
    }
}

// BatchNorm's lines for both states of a pair, that begins with state n of step k, and a thread's two channels. A state
// behind the last one gets 0.
struct Lines { float scale[2][2], offset[2][2]; };
__device__ __forceinline__ void read_lines(Lines &found, const float *lines, int k, int n, int K, int N, int num_kept) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
        const bool exists = k < K;
        const float *at = lines + (exists ? k : 0) * 256 + (n >= num_kept ? 128 : 0);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            found.scale[s][h] = exists ? at[8 * h] : 0.0f;
            found.offset[s][h] = exists ? at[8 * h + 64] : 0.0f;
        }
        if (++n == N) n = 0, ++k;
    }
}

// Two rows of a thread's fragments of both states, or the last one.
__device__ __forceinline__ void read_rows(u32 stage, int row, int thread, uint4 (&v)[2]) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
        const u32 at = stage + (2 * STATE + s * FRAGMENT + row * 64) * 16;
        if (row < 6) {
            v[s] = read_shared(at + thread * 16);
        } else {
            const uint2 last = read_two(at + thread * 8);
            v[s].x = last.x, v[s].y = last.y;
        }
    }
}
// Waits for pair number i of a block and reads its first rows.
__device__ __forceinline__ void begin_pair(u32 shared, int i, int thread, uint4 (&v)[2]) {
    wait_at(full_at(shared, i % STAGES), i / STAGES);
    publish_shared();
    read_rows(stage_at(shared, i % STAGES), 0, thread, v);
}

// Three warpgroups: products of all pairs in [begin, end); NORMED: what the second convolution was given is a line of
// the stored x1. Results go to `found`.
template <bool NORMED>
__device__ __forceinline__ void multiply_pairs(u32 shared, const float *lines, float4 *found, int begin, int end, int N,
                                               int num_kept, int K) {
    const int warp = first_lane(threadIdx.x / 32), column = warp / 4, thread = threadIdx.x % 128, lane = thread % 32;
    const bool border = lane % 4 == 3;
    float results[3][32];
#pragma unroll
    for (int i = 0; i < 96; ++i) results[i / 32][i % 32] = 0.0f;
    int k = 2 * begin / N, n = 2 * begin % N;
    lines += 16 * (warp % 4) + lane / 4;
    Lines line;
    if (NORMED) read_lines(line, lines, k, n, K, N, num_kept);
    uint4 ahead[2]; // the next two rows of both states
    if (begin < end) begin_pair(shared, 0, thread, ahead);
    for (int i = 0; i < end - begin; ++i) {
        const u32 at = stage_at(shared, i % STAGES);
        // A matrix descriptor in units of 16 bytes: address, distance of 8 slots to the next 8, distance of planes.
        const u32 image = (at >> 4) + 2 - column + (STATE << 16);
        const bool both = k < K && (n + 1 < N || k + 1 < K);
        n += 2;
        while (n >= N) n -= N, ++k;
        Lines next;
        if (NORMED) read_lines(next, lines, k, n, K, N, num_kept);
        uint4 read[2];
#pragma unroll
        for (int row = 0; row < 7; ++row) {
            u32 a[4];
#pragma unroll
            for (int s = 0; s < 2; ++s) {
                if (row % 2 == 0) read[s] = ahead[s];
                a[2 * s] = row % 2 ? read[s].z : read[s].x, a[2 * s + 1] = row % 2 ? read[s].w : read[s].y;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    u32 &v = a[2 * s + h];
                    if (NORMED) {
                        const float scale = line.scale[s][h], offset = line.offset[s][h];
                        v = two(low_of(v) * scale + offset, border ? 0.0f : high_of(v) * scale + offset);
                    } else if (s == 1)
                        v = both ? v : 0;
                }
            }
            begin_products();
#pragma unroll
            for (int tap = 0; tap < 3; ++tap) { // an input in `row` goes into outputs one row below, in it, one above
                const int other = row + 1 - tap;
                if (other >= 0 && other < 7) multiply_rows(results[tap], a, (u64)PLANE << 32 | (image + other * 8));
            }
            commit_products();
            if (row % 2 == 0 && row < 6) read_rows(at, row + 2, thread, ahead);
            if (row == 6 && i + 1 < end - begin) begin_pair(shared, i + 1, thread, ahead);
            wait_products_but_one();
            if (row == 0 && i > 0 && lane == 0) arrive_at(free_at(shared, (i - 1) % STAGES));
        }
        line = next;
    }
    wait_all_products(results[0], results[1], results[2]);
#pragma unroll
    for (int tap = 0; tap < 3; ++tap)
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float *v = results[tap] + 4 * j;
            found[((column * 3 + tap) * 8 + j) * 128 + thread] = float4{v[0], v[1], v[2], v[3]};
        }
}

// Three warps: the sums of the gradients in all pairs in [begin, end) by action and part of the map. A lane adds up one
// part for 8 channels: one of four quarters of the inside, of the borders above, left, right and below between the
// corners, or of the corners.
__device__ __forceinline__ void add_by_action(u32 shared, const long long *actions, float4 *found, int begin, int end,
                                              int N, int K, int num_actions) {
    const int warp = threadIdx.x / 32 % 4 - 1, lane = threadIdx.x % 32, plane = lane % 8, part = lane / 8;
    const bool inside = warp == 0, borders = warp == 1;
    const int slots = inside ? 7 : borders ? 5 : 1;
    int places[7]; // in bytes; three quarters of 25 slots have 6, and as their seventh the zero behind the plane
#pragma unroll
    for (int j = 0; j < 7; ++j) {
        const int number = part + 4 * j; // of the 25 inside
        const int across = part == 2 ? 6 : 0, down = part == 3 ? 6 : 0;
        const int slot = inside    ? (number / 5 + 1) * 8 + number % 5 + 1
                         : borders ? (part % 3 == 0 ? down * 8 + 1 + j : (1 + j) * 8 + across)
                                   : part / 2 * 48 + part % 2 * 6;
        places[j] = (inside && number >= 25 ? PLANE - 1 : slot) * 16;
    }
    const u32 sums = shared + SUMS_AT + ((warp * 4 + part) * 64 + plane * 8) * 4;
    int k = 2 * begin / N, n = 2 * begin % N;
    for (int i = 0; i < end - begin; ++i) {
        const int stage = i % STAGES;
        int action[2];
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            action[s] = k < K ? (int)actions[(u64)n * K + k] : -1;
            if (++n == N) n = 0, ++k;
        }
        wait_at(full_at(shared, stage), i / STAGES);
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            const u32 image = stage_at(shared, stage) + (s * STATE + 1 + plane * PLANE) * 16;
            float sum[8] = {};
#pragma unroll
            for (int from = 0; from < 7; from += 4) { // few registers are left for more at a time
                uint4 read[4];
#pragma unroll
                for (int j = from; j < 7 && j < from + 4; ++j)
                    if (j < slots) read[j - from] = read_shared(image + places[j]);
#pragma unroll
                for (int j = from; j < 7 && j < from + 4; ++j)
                    if (j < slots) {
                        const uint4 v = read[j - from];
                        sum[0] += low_of(v.x), sum[1] += high_of(v.x), sum[2] += low_of(v.y), sum[3] += high_of(v.y);
                        sum[4] += low_of(v.z), sum[5] += high_of(v.z), sum[6] += low_of(v.w), sum[7] += high_of(v.w);
                    }
            }
            if (action[s] >= 0) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const u32 at = sums + action[s] * PARTS * 256 + half * 16;
                    const uint4 v = read_shared(at);
                    const float *more = sum + 4 * half;
                    write_shared(at, uint4{__float_as_uint(__uint_as_float(v.x) + more[0]),
                                           __float_as_uint(__uint_as_float(v.y) + more[1]),
                                           __float_as_uint(__uint_as_float(v.z) + more[2]),
                                           __float_as_uint(__uint_as_float(v.w) + more[3])});
                }
            }
        }
        warp_sync();
        if (lane == 0) arrive_at(free_at(shared, stage));
    }
    bar_sync(ADDING_BAR, ADDING);
    for (int i = threadIdx.x % 128 - 32; i < num_actions * REGIONS; i += ADDING) {
        // Region number i / 16 % 9: row by row, the inside in the middle.
        const int region = i / 16 % 9;
        const int where = region % 2 ? 4 + region / 2 : region == 4 ? 0 : 8 + region / 6 * 2 + region % 3 / 2;
        const u32 at = shared + SUMS_AT + ((i / REGIONS * PARTS + where) * 16 + i % 16) * 16;
        float4 sum = {0, 0, 0, 0};
        for (int part = 0; part < (region == 4 ? 4 : 1); ++part) {
            const uint4 v = read_shared(at + part * 256);
            sum.x += __uint_as_float(v.x), sum.y += __uint_as_float(v.y);
            sum.z += __uint_as_float(v.z), sum.w += __uint_as_float(v.w);
        }
        found[i] = sum;
    }
}

// zf and x1f (K, N) fragments, dx and du (K, N, 49, 64), lines (K, 2 batches, 2, 64). An even number of blocks; `found`
// is (blocks, FOUND) float4 for the filters, then (blocks / 2, num_actions, REGIONS).
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    parameter_gradients(const long long *actions, const uint4 *zf, const uint4 *x1f, const uint4 *dx, const uint4 *du,
                        const float *lines, float4 *found, int N, int num_kept, int K, int num_actions) {
    const u32 shared = shared_base();
    const int share = gridDim.x / 2, pairs = (N * K + 1) / 2, number = blockIdx.x % share;
    const bool second = (int)blockIdx.x >= share;
    const int begin = (int)((long long)pairs * number / share), end = (int)((long long)pairs * (number + 1) / share);
    const int helper = (int)threadIdx.x - MULTIPLYING; // below 0: a thread that multiplies
    for (int i = threadIdx.x; i < STAGES * 2 * STATE; i += THREADS)
        write_shared(stage_at(shared, i / (2 * STATE)) + i % (2 * STATE) * 16, uint4{0, 0, 0, 0});
    for (int i = threadIdx.x; !second && i < num_actions * PARTS * 16; i += THREADS)
        write_shared(shared + SUMS_AT + i * 16, uint4{0, 0, 0, 0});
    if ((int)threadIdx.x < STAGES) {
        init_barrier(full_at(shared, threadIdx.x), 32);
        init_barrier(free_at(shared, threadIdx.x), MULTIPLYING / 32 + (second ? 0 : ADDING / 32)); // one per warp
    }
    publish_shared();
    bar_sync(ALL_BAR, THREADS);
    if (helper >= 0) {
        leave_registers<56>();
        if (helper < 32)
            copy_pairs(shared, second ? x1f : zf, second ? du : dx, begin, end, N * K);
        else if (!second)
            add_by_action(shared, actions, found + (u64)gridDim.x * FOUND + (u64)number * num_actions * REGIONS, begin,
                          end, N, K, num_actions);
        return;
    }
    take_registers<152>();
    float4 *mine = found + (u64)blockIdx.x * FOUND;
    if (second)
        multiply_pairs<true>(shared, lines, mine, begin, end, N, num_kept, K);
    else
        multiply_pairs<false>(shared, lines, mine, begin, end, N, num_kept, K);
}

// Adds up what the `share` blocks of each convolution found, and `totals` (2·K, 3, 64): into filters of any strides,
// maps (num_actions, 49, 64), where a region's sum is spread over its positions, and vectors (3, 64). Blocks of 256
// threads, for 64 float4 each.
extern "C" __global__ void __launch_bounds__(256)
    add_partials(const float4 *found, const float4 *totals, float *filter1, float *filter2, float4 *maps,
                 float4 *vectors, int share, int num_actions, int K, int in1, int out1, int tap1, int in2, int out2,
                 int tap2) {
    const u32 at = shared_base() + threadIdx.x * 16;
    const int part = threadIdx.x / 64, all = 2 * FOUND + num_actions * REGIONS + 48;
    int i = blockIdx.x * 64 + threadIdx.x % 64, width = FOUND, rows = share;
    const bool inside = i < all, second = i >= FOUND, map = i >= 2 * FOUND;
    const bool vector = i >= 2 * FOUND + num_actions * REGIONS;
    const float4 *from = found;
    if (vector)
        i -= 2 * FOUND + num_actions * REGIONS, from = totals, width = 48, rows = 2 * K;
    else if (map)
        i -= 2 * FOUND, from += (u64)2 * share * FOUND, width = num_actions * REGIONS;
    else if (second)
        i -= FOUND, from += (u64)share * FOUND;
    float4 sum = {0, 0, 0, 0};
    if (inside) {
#pragma unroll 8
        for (int row = part; row < rows; row += 4) {
            const float4 v = from[(u64)row * width + i];
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
    }
    write_shared(at, uint4{__float_as_uint(sum.x), __float_as_uint(sum.y), __float_as_uint(sum.z),
                           __float_as_uint(sum.w)});
    bar_sync(ALL_BAR, 256);
    if (part > 0 || !inside) return;
#pragma unroll
    for (int other = 1; other < 4; ++other) {
        const uint4 v = read_shared(at + other * 64 * 16);
        sum.x += __uint_as_float(v.x), sum.y += __uint_as_float(v.y);
        sum.z += __uint_as_float(v.z), sum.w += __uint_as_float(v.w);
    }
    if (vector) {
        vectors[i] = sum;
    } else if (map) {
        const int action = i / REGIONS, region = i / 16 % 9, row = region / 3, column = region % 3;
        const float by_count = 1.0f / ((row == 1 ? 5 : 1) * (column == 1 ? 5 : 1));
        const float4 mean = {sum.x * by_count, sum.y * by_count, sum.z * by_count, sum.w * by_count};
        const int first_row = row == 2 ? 6 : row, first_column = column == 2 ? 6 : column;
        for (int y = first_row; y < (row == 1 ? 6 : first_row + 1); ++y)
            for (int x = first_column; x < (column == 1 ? 6 : first_column + 1); ++x)
                maps[(action * POSITIONS + y * 7 + x) * 16 + i % 16] = mean;
    } else {
        const int thread = i % 128, in = thread / 32 * 16 + thread % 32 / 4, out = i / 128 % 8 * 8 + thread % 4 * 2;
        const int tap = i / 1024 % 3 * 3 + i / 3072;
        const int by_in = second ? in2 : in1, by_out = second ? out2 : out1;
        float *to = (second ? filter2 + tap * tap2 : filter1 + tap * tap1) + in * by_in + out * by_out;
        to[0] = sum.x, to[by_out] = sum.y, to[8 * by_in] = sum.z, to[8 * by_in + by_out] = sum.w;
    }
}
