// Weight gradients of convolutions of stride 1 with 64 outputs, for Hopper's tensor cores; see convolution_hopper.py.
//
// Products: gradient (64 outputs × inputs, of one tap) += g (64 outputs × positions) · x (positions × inputs). Positions
// are "slots" as in convolution_hopper.cu, row after row of WIDTH columns for x and for g alike, where what lies beyond
// g's last column or row is 0; a tap is a shift of x by whole slots. A block goes through tiles of COLUMNS slots and keeps
// all sums in registers: each of SIDE warpgroups those of one row of taps. Four more warps bring tiles, STAGES of which
// are in shared memory: 8 channels of a slot are one unit of 16 bytes, a plane apart from the next 8.
//
// hopper.cuh comes first; PLANES, SIDE, HEIGHT, WIDTH, COLUMNS and products of 8·PLANES columns, of matrices in which the
// positions, over which they sum, are not what lies side by side, from the host.

constexpr int HO = HEIGHT - SIDE + 1, WO = WIDTH - SIDE + 1;
constexpr int LAST = (HO - 1) * WIDTH + WO;
constexpr int TILES = (LAST + COLUMNS - 1) / COLUMNS; // of an image
constexpr int SLOTS = COLUMNS + (SIDE - 1) * (WIDTH + 1);
constexpr int PLANE = (SLOTS + 2) / 8 * 8 + 5, OUT_PLANE = COLUMNS + 5; // units; 5 modulo 8 against bank conflicts
constexpr int BUFFER = PLANES * PLANE + 8 * OUT_PLANE;                  // x, then g
constexpr int STAGES = 3;
constexpr int THREADS = 128 * (SIDE + 1);
constexpr int INPUTS = 8 * PLANES, RESULTS = INPUTS / 2; // per thread and tap
static_assert(COLUMNS % 16 == 0 && WIDTH >= 16, "a round of loads is within a row or two");
constexpr int FULL_BAR = 1, EMPTY_BAR = FULL_BAR + STAGES;

// Brings the slots from `first` on of an image and of its gradient into a buffer, by 128 threads. These few threads have
// no time for divisions, and none for branches.
__device__ __forceinline__ void load_tile(const uint4 *x, const uint4 *g, int first, u32 buffer, int thread) {
    {
        constexpr int PER = 128 / PLANES, ROUNDS = (SLOTS + PER - 1) / PER; // slots of a round
        const int slot = thread / PLANES, plane = thread % PLANES, left = HEIGHT * WIDTH - first - slot;
        const uint4 *from = x + (first + slot) * PLANES + plane;
        const u32 to = buffer + (plane * PLANE + slot) * 16;
#pragma unroll
        for (int round = 0; round < ROUNDS; ++round)
            if (slot < PER && (round < ROUNDS - 1 || slot < SLOTS - round * PER))
                copy_or_clear(to + round * PER * 16, from + round * PER * PLANES, round * PER < left);
    }
    const int slot = thread / 8, plane = thread % 8;
    const u32 to = buffer + (PLANES * PLANE + plane * OUT_PLANE + slot) * 16;
    int row = (first + slot) / WIDTH, column = (first + slot) % WIDTH;
    const uint4 *from = g + (row * WO + column) * 8 + plane;
#pragma unroll
    for (int round = 0; round < COLUMNS / 16; ++round) {
        copy_or_clear(to + round * 256, from, row < HO && column < WO);
        column += 16, from += 128;
        const bool next = column >= WIDTH;
        column -= next ? WIDTH : 0, row += next, from -= next ? (SIDE - 1) * 8 : 0;
    }
}

// Each block's sums (SIDE, SIDE, 64, INPUTS) for x (N, HEIGHT, WIDTH, INPUTS) and g (N, HO, WO, 64).
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    weight_gradient(const uint4 *x, const uint4 *g, float *sums, int images) {
    const int warp = first_lane(threadIdx.x / 32), group = warp / 4, thread = threadIdx.x % 128;
    const u32 shared = shared_base();
    const int tiles = images * TILES, step = gridDim.x;
    if (group == SIDE) {
        int round = 0;
        for (int tile = blockIdx.x; tile < tiles; tile += step, ++round) {
            const int n = tile / TILES;
            if (round >= STAGES) bar_sync(EMPTY_BAR + round % STAGES, THREADS);
            load_tile(x + (u64)n * (HEIGHT * WIDTH * PLANES), g + (u64)n * (HO * WO * 8), tile % TILES * COLUMNS,
                      shared + round % STAGES * BUFFER * 16, thread);
            commit_copies();
            if (round == 0) continue;
            wait_copies_but_one();
            publish_shared();
            bar_arrive(FULL_BAR + (round - 1) % STAGES, THREADS);
        }
        wait_copies();
        publish_shared();
        bar_arrive(FULL_BAR + (round - 1) % STAGES, THREADS);
        return;
    }
    float results[SIDE][RESULTS];
#pragma unroll
    for (int i = 0; i < SIDE * RESULTS; ++i) results[i / RESULTS][i % RESULTS] = 0.0f;
    int round = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += step, ++round) {
        // Matrix descriptors in units of 16 bytes: address, distance of 8 positions, distance of 8 channels.
        const u32 buffer = (shared >> 4) + round % STAGES * BUFFER + (8 << 16);
        bar_sync(FULL_BAR + round % STAGES, THREADS);
        begin_products();
#pragma unroll
        for (int k = 0; k < COLUMNS; k += 16)
#pragma unroll
            for (int dx = 0; dx < SIDE; ++dx) {
                const u64 a = (u64)OUT_PLANE << 32 | (buffer + PLANES * PLANE + k);
                const u64 b = (u64)PLANE << 32 | (buffer + group * WIDTH + dx + k);
                multiply_add(results[dx], a, b);
            }
        commit_products();
#pragma unroll
        for (int dx = 0; dx < SIDE; ++dx) wait_products(results[dx]);
        if (tile + STAGES * step < tiles) bar_arrive(EMPTY_BAR + round % STAGES, THREADS);
    }
    const int lane = thread % 32, output = 16 * (warp % 4) + lane / 4;
    float *to = sums + ((u64)blockIdx.x * SIDE + group) * (SIDE * 64 * INPUTS) + output * INPUTS + 2 * (lane % 4);
#pragma unroll
    for (int dx = 0; dx < SIDE; ++dx)
#pragma unroll
        for (int i = 0; i < RESULTS; ++i) // four of 8 inputs: two inputs each of the output and of that 8 later
            to[(dx * 64 + i / 2 % 2 * 8) * INPUTS + i / 4 * 8 + i % 2] = results[dx][i];
}
