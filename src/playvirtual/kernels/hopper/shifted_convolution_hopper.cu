// Random shifts of stacks of images in bytes, their first convolution (4 frames, 8×8 pixels, stride 4, 32 outputs) and
// its ReLU, for Hopper's tensor cores; see shifted_convolution_hopper.py.
//
// A block takes view after view: all threads turn its bytes into bfloat16 in shared memory, blocks of 4×4 pixels being
// "slots" of 64 channels, then two warpgroups multiply. Three blocks share an SM, so that one multiplies while another
// reads.
//
// Products: outputs (64 positions × 32 channels) = image (positions × 64 channels, one of 2×2 taps) · filter. Positions
// are slots, row after row of SIDE columns, so that a tap is a shift by whole slots and every shift is an address. Eight
// channels of a slot are one unit of 16 bytes, PLANE units apart from the next 8. The last column and row of outputs
// reach beyond the image: they are left out.
//
// In global memory images are (N, 4, SIZE, SIZE) bytes, filters (2, 2·8 units, 32, 8), outputs (V, OUT/2, OUT/2, 128):
// blocks of 2×2 positions, as the next convolution, of stride 2, wants them.
//
// hopper.cuh comes first; SIZE and products of 32 columns from the host.

constexpr int SIDE = SIZE / 4, OUT = SIDE - 1, SLOTS = SIDE * SIDE;
constexpr int TILES = ((OUT - 1) * SIDE + OUT + 63) / 64; // of 64 positions
constexpr int PLANE = (SLOTS + 2) / 8 * 8 + 5;            // ≥ SLOTS; planes begin in different banks
constexpr int FILTER = 4 * 8 * 32;                        // units
constexpr int THREADS = 256, EACH = (TILES + 1) / 2;      // of a block; tiles of a warpgroup
constexpr int CHANNEL = SIZE * SIZE, WORDS = SIZE / 4;    // bytes of a frame, words of 4 pixels in a line of it
constexpr u32 IMAGE_AT = FILTER * 16;
constexpr int ALL_BAR = 0;

static_assert(SIZE % 8 == 4 && PLANE >= SLOTS, "sizes");

// The word at this place of a line; beyond an end of it the last pixel there is repeated.
__device__ __forceinline__ u32 pixels(const u32 *line, int place) {
    const u32 v = line[place < 0 ? 0 : place < WORDS ? place : WORDS - 1];
    return place < 0 ? (v & 0xff) * 0x01010101u : place < WORDS ? v : (v >> 24) * 0x01010101u;
}

__device__ __forceinline__ float number(u32 word, int i) { // byte i; 2²³ has room for it in its last digits
    return __uint_as_float(0x4b000000u | (word >> 8 * i & 0xff)) - 8388608.0f;
}

// Brings a view, shifted by (top, left), times `scale`, into shared memory.
__device__ __forceinline__ void load_view(const unsigned char *image, int top, int left, float scale, u32 shared) {
    const int words = left >> 2, bits = 8 * (left & 3);
#pragma unroll 2
    for (int i = threadIdx.x; i < 4 * SLOTS; i += THREADS) {
        const int row = i / SLOTS, slot = i % SLOTS; // a row of pixels in its slot: two units
        int y = slot / SIDE * 4 + row + top;
        y = y < 0 ? 0 : y < SIZE ? y : SIZE - 1;
        const int at = slot % SIDE + words;
        u32 four[4]; // pixels of each frame
#pragma unroll
        for (int frame = 0; frame < 4; ++frame) {
            const u32 *line = (const u32 *)(image + frame * CHANNEL + y * SIZE);
            four[frame] = (u32)(((u64)pixels(line, at + 1) << 32 | pixels(line, at)) >> bits);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            u32 v[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) { // pixel after pixel, frame after frame
                const int pixel = 2 * half + j / 2, frame = 2 * (j % 2);
                v[j] = two(number(four[frame], pixel) * scale, number(four[frame + 1], pixel) * scale);
            }
            write_shared(shared + IMAGE_AT + ((2 * row + half) * PLANE + slot) * 16, uint4{v[0], v[1], v[2], v[3]});
        }
    }
}

// Word i of lane j of four neighbors becomes word j of lane i.
__device__ __forceinline__ void transpose(u32 (&v)[4], int lane) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i & step) continue;
            const bool upper = lane & step;
            const float given = __uint_as_float(upper ? v[i] : v[i | step]);
            const u32 taken = __float_as_uint(shuffle_xor(given, step));
            if (upper) v[i] = taken; else v[i | step] = taken;
        }
}

// y = relu(view * filters + bias) for view v = images[source[v]], moved up and left by shift[v], times factor[v]. Images
// are `step` bytes apart.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    shifted_convolution(const unsigned char *images, int step, const long long *shift, const long long *source,
                        const float *factor, const uint4 *filters, const float *bias, uint4 *y, int views) {
    const int group = first_lane(threadIdx.x / 128), lane = threadIdx.x % 32, quad = lane % 4;
    const int row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    const u32 shared = shared_base();
    for (int i = threadIdx.x; i < FILTER; i += THREADS) copy_to_shared(shared + i * 16, filters + i);
    float b[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) b[i] = bias[i / 2 * 8 + quad * 2 + i % 2];
    wait_copies();
    // Descriptors in units of 16 bytes: address, distance along channels; 8 rows or channels are 8 units.
    const u32 filter = (shared >> 4) + (32 << 16), image = (shared + IMAGE_AT >> 4) + (PLANE << 16);
    for (int v = blockIdx.x; v < views; v += gridDim.x) {
        load_view(images + source[v] * step, (int)shift[2 * v], (int)shift[2 * v + 1], factor[v], shared);
        publish_shared();
        bar_sync(ALL_BAR, THREADS);
#pragma unroll 1
        for (int tile = group * EACH; tile < (group + 1) * EACH && tile < TILES; ++tile) {
            float results[16];
            begin_products();
#pragma unroll
            for (int tap = 0; tap < 4; ++tap)
#pragma unroll
                for (int part = 0; part < 4; ++part) { // 16 channels each
                    const u32 there = tile * 64 + tap / 2 * SIDE + tap % 2 + part * 2 * PLANE;
                    const u64 a = (u64)8 << 32 | (image + there);
                    const u64 w = (u64)8 << 32 | (filter + (tap * 8 + part * 2) * 32);
                    tap + part == 0 ? multiply(results, a, w) : multiply_add(results, a, w);
                }
            commit_products();
            wait_products(results);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                u32 words[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const float r0 = results[4 * j + 2 * half] + b[2 * j], r1 = results[4 * j + 2 * half + 1] + b[2 * j + 1];
                    words[j] = two(fmaxf(r0, 0.0f), fmaxf(r1, 0.0f));
                }
                transpose(words, lane);
                const int position = tile * 64 + row + 8 * half, line = position / SIDE, column = position % SIDE;
                if (line < OUT && column < OUT)
                    y[(((u64)v * (OUT / 2) + line / 2) * (OUT / 2) + column / 2) * 16 + (line % 2 * 2 + column % 2) * 4 +
                      quad] = uint4{words[0], words[1], words[2], words[3]};
            }
        }
        bar_sync(ALL_BAR, THREADS); // the view has been read by all
    }
}
