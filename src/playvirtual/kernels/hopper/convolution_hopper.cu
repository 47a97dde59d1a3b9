// Convolutions of stride 1 with 64 outputs, bias and ReLU, and their data gradients, for Hopper's tensor cores; see
// convolution_hopper.py.
//
// A block keeps the filter in shared memory and goes through tiles of COLUMNS positions of an image, two warpgroups one
// tile each. Two further warps per warpgroup bring its next tile while it computes.
//
// Products: outputs (64 channels × positions) = filter (64 × channels, one of SIDE² taps) · image (channels ×
// positions). The positions of an image are "slots", row after row of WS columns; a tap is then a shift by whole slots.
// In shared memory 8 channels of a slot are one unit of 16 bytes, PLANE units apart from the next 8, so every shift is
// an address. Without padding a row's last SIDE − 1 outputs reach into the next row: they are left out. With padding,
// of the gradient, every row has PAD zeros behind it, which are also those before the next one.
//
// In global memory images are (N, HEIGHT, WIDTH, 8·PLANES), outputs (N, HO, WO, 64), filters (SIDE, units, 64, 8), the
// units of one row of taps being in the order of `convolve`.
//
// hopper.cuh comes first; PLANES, SIDE, HEIGHT, WIDTH, PAD, COLUMNS and products of COLUMNS columns from the host.

constexpr bool GRADIENT = PAD > 0;
constexpr int HO = HEIGHT + 2 * PAD - SIDE + 1, WO = WIDTH + 2 * PAD - SIDE + 1;
constexpr int WS = WIDTH + PAD;
constexpr int SHIFT = PAD * (WS + 1);                // from an output's slot back to the first one that it sums over
constexpr int LAST = (HO - 1) * WS + WO;             // slots of an image up to its last output
constexpr int TILES = (LAST + COLUMNS - 1) / COLUMNS; // of an image
constexpr int SLOTS = COLUMNS + (SIDE - 1) * (WS + 1);
constexpr int PLANE = (SLOTS + 2) / 8 * 8 + 5;       // ≥ SLOTS and 5 modulo 8: units next to each other in global
constexpr int STAGED = COLUMNS + 5;                  // memory, 5 or 8 to a slot, lie in different banks
constexpr int BUFFER = PLANES * PLANE > 8 * STAGED ? PLANES * PLANE : 8 * STAGED;
constexpr int FILTER = SIDE * SIDE * PLANES * 64;    // units
constexpr int THREADS = 384, PAIR = 192;             // of a block; of a warpgroup and the warps that bring its tiles
constexpr int RESULTS = COLUMNS / 2;                 // per thread
constexpr int STORES = (COLUMNS + 15) / 16;          // units that a thread stores
constexpr u32 BUFFERS_AT = FILTER * 16;              // (2 warpgroups, 2, BUFFER) units
constexpr u32 SUMS_AT = BUFFERS_AT + 4 * BUFFER * 16; // (8 warps, 64) floats
// Named barriers: of all threads; of each warpgroup, or of each of its two buffers.
constexpr int ALL_BAR = 0, FULL_BAR = 1, EMPTY_BAR = 5, GROUP_BAR = 9, TURN_BAR = 11, SUMS_BAR = 13;

static_assert(PLANE >= SLOTS && PLANE % 8 == 5, "planes");
static_assert(!GRADIENT || WS >= 64 / PLANES, "a round of loads is within a row or two");
static_assert(PLANES % 2 == 0 || SIDE % 2 == 0, "a single unit of 8 channels needs that of the next tap");

// Brings slots [first, first + SLOTS) of an image into a buffer, by 64 threads: in each round 64 / PLANES slots. These
// few threads have no time for divisions, and none for branches.
__device__ __forceinline__ void load_tile(const uint4 *image, int first, u32 buffer, int thread) {
    constexpr int PER = 64 / PLANES, ROUNDS = (SLOTS + PER - 1) / PER;
    const int slot = thread / PLANES, plane = thread % PLANES;
    if (slot >= PER) return;
    buffer += (plane * PLANE + slot) * 16;
    const int from = first + slot + (PAD + 1) * WS;
    int row = from / WS - PAD - 1, column = from % WS; // with padding
    const uint4 *at = image + (GRADIENT ? row * WIDTH + column : first + slot) * PLANES + plane;
    const int left = HEIGHT * WIDTH - first - slot;
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const bool last = round == ROUNDS - 1, inside = !last || slot < SLOTS - round * PER;
        if (GRADIENT) {
            if (inside) copy_or_clear(buffer + round * PER * 16, at, row >= 0 && row < HEIGHT && column < WIDTH);
            column += PER, at += PER * PLANES;
            const bool next = column >= WS;
            column -= next ? WS : 0, row += next, at -= next ? PAD * PLANES : 0;
        } else if (inside && round * PER < left) { // what is not read concerns outputs that are left out
            copy_to_shared(buffer + round * PER * 16, at + round * PER * PLANES);
        }
    }
}

// Begins results = filter · image over all taps, and returns when the last product has been issued.
__device__ __forceinline__ void convolve(float (&results)[RESULTS], u32 filters, u32 buffer) {
    // Matrix descriptors in units of 16 bytes: address, distance along channels, distance of 8 rows (or slots).
    const u32 filter = (filters >> 4) + (64 << 16), image = buffer >> 4;
    int unit = 0;
#pragma unroll
    for (int dy = 0; dy < SIDE; ++dy) {
#pragma unroll
        for (int dx = 0; dx < SIDE; ++dx)
#pragma unroll
            for (int part = 0; part < PLANES / 2; ++part, unit += 2) { // 16 channels each
                const u64 a = (u64)8 << 32 | (filter + unit * 64);
                const u64 b = (u64)8 << 32 | (image + dy * WS + dx + part * 2 * PLANE + (PLANE << 16));
                unit == 0 ? multiply(results, a, b) : multiply_add(results, a, b);
            }
        if (PLANES % 2) {
#pragma unroll
            for (int dx = 0; dx < SIDE; dx += 2, unit += 2) { // the last 8 channels of two taps
                const u64 a = (u64)8 << 32 | (filter + unit * 64);
                const u64 b = (u64)8 << 32 | (image + dy * WS + dx + (PLANES - 1) * PLANE + (1 << 16));
                multiply_add(results, a, b);
            }
        }
    }
    commit_products();
}

// x where y > 0, else 0; two numbers.
__device__ __forceinline__ u32 masked(u32 x, u32 y) {
    return x & ((low_of(y) > 0.0f ? 0xffffu : 0u) | (high_of(y) > 0.0f ? 0xffff0000u : 0u));
}

// y = relu(x * filters + bias); or, with padding, y = x * filters where `inputs`, the outputs of the ReLU before it,
// are greater than 0, else 0, which is added up over all positions into `sums` (64).
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    convolution(const uint4 *x, const uint4 *filters, const float *bias, const uint4 *inputs, uint4 *y, float *sums,
                int images) {
    const int warp = first_lane(threadIdx.x / 32);
    const bool brings = warp >= 8;
    const int group = brings ? (warp - 8) / 2 : warp / 4;
    const u32 shared = shared_base(), buffers = shared + BUFFERS_AT + group * 2 * BUFFER * 16;
    for (int i = threadIdx.x; i < FILTER; i += THREADS) copy_to_shared(shared + i * 16, filters + i);
    wait_copies();
    publish_shared();
    bar_sync(ALL_BAR, THREADS);
    const int tiles = images * TILES, step = 2 * gridDim.x, begin = 2 * blockIdx.x;
    if (brings) {
        int round = 0;
        for (int tile = begin + group; tile < tiles; tile += step, ++round) {
            const int which = round % 2, n = tile / TILES;
            if (round >= 2) bar_sync(EMPTY_BAR + 2 * group + which, PAIR);
            load_tile(x + (u64)n * (HEIGHT * WIDTH * PLANES), tile % TILES * COLUMNS - SHIFT,
                      buffers + which * BUFFER * 16, threadIdx.x % 64);
            wait_copies();
            publish_shared();
            bar_arrive(FULL_BAR + 2 * group + which, PAIR);
        }
        return;
    }
    const int thread = threadIdx.x % 128, lane = thread % 32, plane = thread % 8;
    const int channel = 16 * (warp % 4) + lane / 4;
    const float low_bias = GRADIENT ? 0.0f : bias[channel], high_bias = GRADIENT ? 0.0f : bias[channel + 8];
    const u32 write_at = ((2 * (warp % 4) + lane / 8 % 2) * STAGED + 8 * (lane / 16) + lane % 8) * 16;
    const u32 read_at = (plane * STAGED + thread / 8) * 16;
    float total[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (group == 1) bar_arrive(TURN_BAR, 256);
    int round = 0;
    for (int first = begin; first < tiles; first += step, ++round) {
        const int tile = first + group, which = round % 2, n = tile / TILES, from = tile % TILES * COLUMNS;
        const bool exists = tile < tiles; // the same for a whole warpgroup
        const u32 buffer = buffers + which * BUFFER * 16;
        float results[RESULTS];
        if (exists) bar_sync(FULL_BAR + 2 * group + which, PAIR);
        // Warpgroups issue their products in turns, so that one stores its results while the other computes.
        bar_sync(TURN_BAR + group, 256);
        if (!exists) {
            bar_arrive(TURN_BAR + 1 - group, 256);
            break;
        }
        begin_products();
        convolve(results, shared, buffer);
        bar_arrive(TURN_BAR + 1 - group, 256);
        wait_products(results);
        bar_sync(GROUP_BAR + group, 128); // the tile has been read by all
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j += 2) {
            u32 words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (4 * j + 2 * i >= RESULTS) continue;
                const float b = i % 2 ? high_bias : low_bias;
                const float r0 = results[4 * j + 2 * i] + b, r1 = results[4 * j + 2 * i + 1] + b;
                words[i] = GRADIENT ? two(r0, r1) : two(fmaxf(r0, 0.0f), fmaxf(r1, 0.0f));
            }
            if (j + 1 < COLUMNS / 8)
                store_transposed(buffer + write_at + j * 128, words[0], words[1], words[2], words[3]);
            else
                store_transposed(buffer + write_at + j * 128, words[0], words[1]);
        }
        bar_sync(GROUP_BAR + group, 128);
        const u64 outputs = (u64)n * (HO * WO);
        if (GRADIENT) {
            uint4 before[STORES];
            const u64 at = (outputs + from) * 8 + thread;
            const int left = LAST - from < COLUMNS ? LAST - from : COLUMNS;
#pragma unroll
            for (int i = 0; i < STORES; ++i)
                before[i] = thread / 8 + 16 * i < left ? inputs[at + 128 * i] : uint4{0, 0, 0, 0};
#pragma unroll
            for (int i = 0; i < STORES; ++i) {
                if (thread / 8 + 16 * i >= left) continue;
                uint4 v = read_shared(buffer + read_at + i * 256);
                v.x = masked(v.x, before[i].x), v.y = masked(v.y, before[i].y);
                v.z = masked(v.z, before[i].z), v.w = masked(v.w, before[i].w);
                y[at + 128 * i] = v;
                total[0] += low_of(v.x), total[1] += high_of(v.x), total[2] += low_of(v.y), total[3] += high_of(v.y);
                total[4] += low_of(v.z), total[5] += high_of(v.z), total[6] += low_of(v.w), total[7] += high_of(v.w);
            }
        } else {
#pragma unroll
            for (int i = 0; i < STORES; ++i) {
                const int slot = thread / 8 + 16 * i, row = (from + slot) / WS, column = (from + slot) % WS;
                if (slot < COLUMNS && row < HO && column < WO)
                    y[(outputs + row * WO + column) * 8 + plane] = read_shared(buffer + read_at + i * 256);
            }
        }
        if (tile + 2 * step < tiles) bar_arrive(EMPTY_BAR + 2 * group + which, PAIR);
    }
    if (group == 0) bar_sync(TURN_BAR, 256); // as many wait as have passed
    if (!GRADIENT) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        total[i] += shuffle_xor(total[i], 8);
        total[i] += shuffle_xor(total[i], 16);
        if (lane < 8) write_word(shared + SUMS_AT + (warp * 64 + lane * 8 + i) * 4, __float_as_uint(total[i]));
    }
    bar_sync(SUMS_BAR, 256);
    if (threadIdx.x < 16) {
        float4 all = {0, 0, 0, 0};
        for (int w = 0; w < 8; ++w) {
            const uint4 v = read_shared(shared + SUMS_AT + (w * 64 + threadIdx.x * 4) * 4);
            all.x += __uint_as_float(v.x), all.y += __uint_as_float(v.y);
            all.z += __uint_as_float(v.z), all.w += __uint_as_float(v.w);
        }
        add_global(sums + threadIdx.x * 4, all);
    }
}
