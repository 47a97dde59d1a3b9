// Crops of images in bytes as bfloat16, regrouped by space-to-depth; see crop_hopper.py.
//
// A thread makes one block of pixels, all channels of it, 8 to a unit of 16 bytes; threads side by side make blocks that
// are side by side, so that each of their loads is of neighboring bytes. Units go out by way of shared memory, in order.
//
// hopper.cuh comes first; C, H and W of the images, SIZE of the crops, BLOCK and UNITS from the host.

constexpr int SIDE = SIZE / BLOCK, BLOCKS = SIDE * SIDE;
constexpr int THREADS = 256, PARTS = (BLOCKS + THREADS - 1) / THREADS, EACH = (BLOCKS + PARTS - 1) / PARTS;
constexpr int VALUES = BLOCK * BLOCK * C;

// Crop v, at its offset (top, left) in images[source[v]], times its factor: (V, SIDE, SIDE, UNITS). Images are `step` bytes
// apart.
extern "C" __global__ void __launch_bounds__(THREADS)
    crop(const unsigned char *images, int step, const long long *offsets, const long long *source, const float *factor,
         uint4 *out) {
    const int v = blockIdx.x / PARTS, begin = blockIdx.x % PARTS * EACH, here = begin + threadIdx.x;
    const int count = BLOCKS - begin < EACH ? BLOCKS - begin : EACH;
    const u32 shared = shared_base();
    if ((int)threadIdx.x < count) {
        const int top = (int)offsets[2 * v] + here / SIDE * BLOCK, left = (int)offsets[2 * v + 1] + here % SIDE * BLOCK;
        const unsigned char *from = images + source[v] * step + top * W + left;
        const float scale = factor[v];
        unsigned char bytes[VALUES];
#pragma unroll
        for (int i = 0; i < VALUES; ++i) // in the order line, pixel, channel
            bytes[i] = from[i % C * H * W + i / (BLOCK * C) * W + i / C % BLOCK];
        float values[8 * UNITS];
#pragma unroll
        for (int i = 0; i < 8 * UNITS; ++i) // 2²³ has room for a byte in its last digits
            values[i] = i < VALUES ? (__uint_as_float(0x4b000000u | bytes[i % VALUES]) - 8388608.0f) * scale : 0.0f;
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            const float *f = values + 8 * u;
            write_shared(shared + (threadIdx.x * UNITS + u) * 16,
                         uint4{two(f[0], f[1]), two(f[2], f[3]), two(f[4], f[5]), two(f[6], f[7])});
        }
    }
    bar_sync(0, THREADS);
    uint4 *to = out + ((u64)v * BLOCKS + begin) * UNITS;
    for (int i = threadIdx.x; i < count * UNITS; i += THREADS) to[i] = read_shared(shared + i * 16);
}
