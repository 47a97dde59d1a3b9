// What the kernels for Hopper GPUs ask of the chip, each as one function; on the CPU a test brings its own.

typedef unsigned int u32;
typedef unsigned long long u64;

// A state of a rollout is 7×7 positions of 64 channels, in global memory (49 positions, 64 channels) or, where only these kernels
// read it, as "fragments": what each thread of a warpgroup holds of it as a product's results or left operand. Those
// are words of two columns, 2·(lane % 4) and the next, for channels 16·warp + lane / 4 and that + 8, of 7 rows:
// (3, 128, 4) words for two rows each and then (128, 2) for the last row. The eighth column is 0.
constexpr int POSITIONS = 49;
constexpr int CHUNKS = POSITIONS * 8;     // uint4 of one state in global memory
constexpr int FRAGMENT = 3 * 128 + 64;    // uint4 of one state's fragments

#ifndef ON_CPU
__device__ __forceinline__ void bar_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void bar_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ u32 shared_base() {
    extern __shared__ __align__(128) unsigned char shared[];
    return (u32)__cvta_generic_to_shared(shared);
}
__device__ __forceinline__ uint2 read_two(u32 at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ uint4 read_shared(u32 at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ void write_shared(u32 at, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
__device__ __forceinline__ u32 read_word(u32 at) {
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ void write_word(u32 at, u32 v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
__device__ __forceinline__ void copy_to_shared(u32 at, const uint4 *from) { // asynchronously
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_or_clear(u32 at, const uint4 *from, bool wanted) { // 0 if not wanted
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(wanted ? 16 : 0) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_copies_but_one() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
__device__ __forceinline__ void init_barrier(u32 at, u32 count) { // one in shared memory, of so many arrivals
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive_at(u32 at) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(at) : "memory");
}
__device__ __forceinline__ void arrive_after_copies(u32 at) { // once this thread's copies have come
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ bool passed(u32 at, u32 parity) { // whether the phase of this parity is over
    u32 v;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(v) : "r"(at), "r"(parity) : "memory");
    return v != 0;
}
template <int COUNT> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void leave_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
__device__ __forceinline__ void store_if(bool wanted, uint4 *at, uint4 v) { // without a branch, amid products
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.global.v4.u32 [%1], {%2, %3, %4, %5};\n}" ::"r"(
                     (int)wanted),
                 "l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
__device__ __forceinline__ float reciprocal(float x) {
    float v;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
    return v;
}
__device__ __forceinline__ float reciprocal_root(float x) {
    float v;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
    return v;
}
// 8×8 numbers of 16 bits: a lane holds row lane / 4, columns 2·(lane % 4) and the next; memory gets columns as rows.
__device__ __forceinline__ void store_transposed(u32 at, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}
__device__ __forceinline__ void store_transposed(u32 at, u32 a, u32 b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(at), "r"(a), "r"(b) : "memory");
}
__device__ __forceinline__ void load_transposed(u32 at, u32 &a, u32 &b) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void publish_shared() { // what threads wrote becomes visible to the tensor cores
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void hide(u32 &a) { asm volatile("" : "+r"(a)); }
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_products_but_one() { // all groups but the last one that was committed
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}
__device__ __forceinline__ float shuffle_xor(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
__device__ __forceinline__ u32 warp_max(u32 v) { return __reduce_max_sync(0xffffffffu, v); }
__device__ __forceinline__ u32 warp_min(u32 v) { return __reduce_min_sync(0xffffffffu, v); }
__device__ __forceinline__ int first_lane(int v) { return __shfl_sync(0xffffffffu, v, 0); }
__device__ __forceinline__ float read_in_order(const float *at) {
    float v;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(at));
    return v;
}
__device__ __forceinline__ void warp_sync() { __syncwarp(); }
__device__ __forceinline__ u32 two(float low, float high) { // two bfloat16 in one word
    u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}
__device__ __forceinline__ float low_of(u32 v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float high_of(u32 v) { return __uint_as_float(v & 0xffff0000u); }
__device__ __forceinline__ void add_global(float *at, float4 v) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}
__device__ __forceinline__ void max_global(int *at, int v) { atomicMax(at, v); }
__device__ __forceinline__ float4 read_fresh(const float *at) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ void arrive(u32 *counter) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ __forceinline__ bool arrived(const u32 *counter, u32 target) {
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(counter) : "memory");
    return v >= target;
}
#endif
