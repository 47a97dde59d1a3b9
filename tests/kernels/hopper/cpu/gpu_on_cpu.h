// What hopper.cuh asks of a GPU, on the CPU: threads are fibers, run one after the other until they have to wait.
// Barriers, exchanges between the lanes of a warp, matrix stores and tensor-core products (from their descriptors) do
// what PTX's manual says. Products read shared memory when they are begun or, with LAZY, when they are waited for; then
// asynchronous copies, too, come as late as they may: when they are waited for or, if a barrier in shared memory tells
// of them, when no thread of the block can go on without them.
// What is not seen here: timing, missing fences, and whether descriptors mean on the chip what the manual says.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#define ON_CPU
#ifndef TRANSPOSED
#define TRANSPOSED false // see number_at
#endif
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct uint4 { unsigned x, y, z, w; };
struct uint2 { unsigned x, y; };
struct float4 { float x, y, z, w; };
struct dim { int x; };

static float __uint_as_float(uint32_t v) { float f; memcpy(&f, &v, 4); return f; }
static uint32_t __float_as_uint(float f) { uint32_t v; memcpy(&v, &f, 4); return v; }

struct Barrier { int arrived = 0; long generation = 0; };
struct Exchange { // between the lanes of a warp
    int arrived = 0, left = 0;
    uint64_t in[32][4];
};
struct Product {
    float *d;
    uint64_t a, b;
    bool add;
    int results;
    bool given = false; // whether the left operand came from registers: a thread's two rows of it
    float rows[2][16] = {};
};
struct Copy {
    uint32_t at;
    const uint4 *from; // null: zeros
    size_t group;      // how many groups had been committed before
};
struct Arrival { // at a barrier in shared memory, once the copies have come
    std::vector<Copy> copies;
    uint32_t barrier;
};
struct Fiber {
    ucontext_t context;
    char *stack = nullptr; // while it has begun and is not done
    int block, thread;
    bool done = false;
    std::vector<Product> waiting;
    size_t committed = 0, before = 0; // products in all groups, and in all but the last one
    std::vector<Copy> copies;         // that have not come yet
    size_t groups = 0;                // of copies that were committed
};
static std::vector<std::unique_ptr<Fiber>> fibers;
static std::vector<std::vector<unsigned char>> shared_of; // by block
static std::vector<std::map<int, Barrier>> barriers;      // by block
static std::vector<std::map<int, Exchange>> exchanges;    // by block, by warp
static std::vector<std::deque<Arrival>> arrivals;         // by block: those to come
static bool LAZY;
static void come(const Arrival &arrival);
static Fiber *now;
static ucontext_t scheduler;
static std::function<void()> body;
static dim threadIdx, blockIdx, gridDim, blockDim;
static bool moved;                   // whether anything happened since the scheduler began its round
constexpr uint32_t SHARED_BASE = 64; // not 0, so that a forgotten base is noticed

static void wait_for(const std::function<bool()> &ready) {
    while (!ready()) {
        Fiber *self = now;
        swapcontext(&self->context, &scheduler);
        now = self;
        threadIdx.x = self->thread, blockIdx.x = self->block;
    }
    moved = true;
}

static void enter() {
    body();
    now->done = true;
    moved = true;
    swapcontext(&now->context, &scheduler);
}

constexpr size_t STACK = 128 << 10;
static std::vector<std::unique_ptr<char[]>> stacks;
static std::vector<char *> free_stacks; // of threads that are done, for those that begin

static void begin(Fiber &fiber) {
    if (free_stacks.empty()) {
        stacks.push_back(std::make_unique<char[]>(STACK));
        free_stacks.push_back(stacks.back().get());
    }
    fiber.stack = free_stacks.back();
    free_stacks.pop_back();
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack, fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
}

static void run_grid(int grid, int block, int shared, std::function<void()> f) {
    body = std::move(f);
    gridDim.x = grid, blockDim.x = block;
    shared_of.assign(grid, std::vector<unsigned char>(SHARED_BASE + shared, 0xff)); // NaN where nothing was written
    barriers.assign(grid, {}), exchanges.assign(grid, {}), arrivals.assign(grid, {});
    fibers.clear();
    for (int b = 0; b < grid; ++b)
        for (int t = 0; t < block; ++t) {
            auto fiber = std::make_unique<Fiber>();
            fiber->block = b, fiber->thread = t;
            fibers.push_back(std::move(fiber));
        }
    int idle = 0; // rounds in which every thread only looked whether something had come
    for (bool open = true; open;) {
        open = false;
        bool advanced = false;
        for (int b = 0; b < grid; ++b) {
            // As far as a block comes by itself, so that few threads have begun and are not done.
            do {
                moved = false;
                for (int t = 0; t < block; ++t) {
                    Fiber &fiber = *fibers[b * block + t];
                    if (fiber.done) continue;
                    if (!fiber.stack) begin(fiber);
                    now = &fiber, threadIdx.x = t, blockIdx.x = b;
                    swapcontext(&scheduler, &now->context);
                    if (fiber.done) free_stacks.push_back(fiber.stack);
                    else open = true;
                }
                if (!moved && !arrivals[b].empty()) {
                    now = fibers[b * block].get(); // any of the block
                    come(arrivals[b].front());
                    arrivals[b].pop_front(), moved = true;
                }
                advanced |= moved;
            } while (moved);
        }
        idle = advanced ? 0 : idle + 1;
        if (idle == 1000) fprintf(stderr, "deadlock\n"), abort();
    }
}

template <class... A, size_t... I>
static void launch_with(void (*f)(A...), int grid, int block, int shared, void **args, std::index_sequence<I...>) {
    run_grid(grid, block, shared, [=]() { f(*static_cast<A *>(args[I])...); });
}
template <class... A> static void launch(void (*f)(A...), int grid, int block, int shared, void **args) {
    launch_with(f, grid, block, shared, args, std::index_sequence_for<A...>{});
}

static unsigned char *at_shared(uint32_t at, int bytes) {
    auto &memory = shared_of[now->block];
    if (at < SHARED_BASE || at + bytes > memory.size()) fprintf(stderr, "outside shared memory: %u\n", at), abort();
    return memory.data() + at;
}
static uint32_t shared_base() { return SHARED_BASE; }
static uint4 read_shared(uint32_t at) { uint4 v; if (at % 16) abort(); memcpy(&v, at_shared(at, 16), 16); return v; }
static void write_shared(uint32_t at, uint4 v) { if (at % 16) abort(); memcpy(at_shared(at, 16), &v, 16); }
static uint32_t read_word(uint32_t at) { uint32_t v; memcpy(&v, at_shared(at, 4), 4); return v; }
static void write_word(uint32_t at, uint32_t v) { memcpy(at_shared(at, 4), &v, 4); }
static void finish_copy(const Copy &copy) { write_shared(copy.at, copy.from ? *copy.from : uint4{0, 0, 0, 0}); }
static void begin_copy(uint32_t at, const uint4 *from) {
    const Copy copy{at, from, now->groups};
    if (LAZY) now->copies.push_back(copy); else finish_copy(copy);
}
static void finish_copies(size_t groups) { // of the first `groups` groups
    auto &copies = now->copies;
    const auto rest = std::find_if(copies.begin(), copies.end(), [=](const Copy &copy) { return copy.group >= groups; });
    std::for_each(copies.begin(), rest, finish_copy);
    copies.erase(copies.begin(), rest);
}
static void copy_to_shared(uint32_t at, const uint4 *from) { begin_copy(at, from); }
static uint2 read_two(uint32_t at) { uint2 v; if (at % 8) abort(); memcpy(&v, at_shared(at, 8), 8); return v; }
static void copy_or_clear(uint32_t at, const uint4 *from, bool wanted) {
    begin_copy(at, wanted ? from : nullptr);
}
static void commit_copies() { ++now->groups; }
static void wait_copies_but_one() { if (now->groups > 0) finish_copies(now->groups - 1); }
static void wait_copies() { finish_copies(now->groups + 1); }
static void store_if(bool wanted, uint4 *at, uint4 v) { if (wanted) *at = v; }
static float reciprocal(float x) { return 1.0f / x; }
static float reciprocal_root(float x) { return 1.0f / std::sqrt(x); }
static void publish_shared() {}
static float read_in_order(const float *at) { return *at; }
static void hide(uint32_t &) {}
template <int COUNT> static void take_registers() {}
template <int COUNT> static void leave_registers() {}

struct SharedBarrier { uint16_t count, missing; uint32_t phases; };
static SharedBarrier shared_barrier(uint32_t at) {
    SharedBarrier bar;
    if (at % 8) abort();
    memcpy(&bar, at_shared(at, 8), 8);
    return bar;
}
static void init_barrier(uint32_t at, uint32_t count) {
    const SharedBarrier bar{(uint16_t)count, (uint16_t)count, 0};
    memcpy(at_shared(at, 8), &bar, 8);
}
static void arrive_at(uint32_t at) {
    SharedBarrier bar = shared_barrier(at);
    if (--bar.missing == 0) bar.missing = bar.count, ++bar.phases, moved = true;
    memcpy(at_shared(at, 8), &bar, 8);
}
static void arrive_after_copies(uint32_t at) {
    if (!LAZY) return arrive_at(at);
    arrivals[now->block].push_back({std::move(now->copies), at});
    now->copies.clear();
}
static void come(const Arrival &arrival) {
    std::for_each(arrival.copies.begin(), arrival.copies.end(), finish_copy);
    arrive_at(arrival.barrier);
}
static bool passed(uint32_t at, uint32_t parity) {
    if (shared_barrier(at).phases % 2 != parity) return true;
    Fiber *self = now;
    swapcontext(&self->context, &scheduler);
    now = self, threadIdx.x = self->thread, blockIdx.x = self->block;
    return false;
}

static void bar_sync(int id, int threads) {
    Barrier &bar = barriers[now->block][id];
    const long mine = bar.generation;
    if (++bar.arrived == threads) bar.arrived = 0, ++bar.generation, moved = true;
    wait_for([&bar, mine]() { return bar.generation > mine; });
}
static void bar_arrive(int id, int threads) {
    Barrier &bar = barriers[now->block][id];
    if (++bar.arrived == threads) bar.arrived = 0, ++bar.generation;
}

// Every lane gives up to four words and sees those of all.
template <class F> static auto with_warp(uint64_t a, uint64_t b, uint64_t c, uint64_t d, F f) {
    Exchange &e = exchanges[now->block][now->thread / 32];
    const int lane = now->thread % 32;
    wait_for([&e]() { return e.left == 0; }); // those of the last exchange have left
    e.in[lane][0] = a, e.in[lane][1] = b, e.in[lane][2] = c, e.in[lane][3] = d;
    ++e.arrived;
    wait_for([&e]() { return e.arrived == 32; });
    struct Leave {
        Exchange &e;
        ~Leave() { if (++e.left == 32) e.left = 0, e.arrived = 0; }
    } leave{e};
    return f(e, lane);
}
static float shuffle_xor(float v, int mask) {
    return with_warp(__float_as_uint(v), 0, 0, 0,
                     [=](Exchange &e, int lane) { return __uint_as_float((uint32_t)e.in[lane ^ mask][0]); });
}
static uint32_t warp_max(uint32_t v) {
    return with_warp(v, 0, 0, 0, [](Exchange &e, int) {
        uint64_t m = 0;
        for (auto &lane : e.in) m = std::max(m, lane[0]);
        return (uint32_t)m;
    });
}
static uint32_t warp_min(uint32_t v) { return ~warp_max(~v); }
static int first_lane(int v) {
    return with_warp((uint32_t)v, 0, 0, 0, [](Exchange &e, int) { return (int)e.in[0][0]; });
}
static void warp_sync() { with_warp(0, 0, 0, 0, [](Exchange &, int) { return 0; }); }

// Matrix i of 8×8 numbers, rows at the addresses that lanes 8·i to 8·i + 7 give, transposed between memory and lanes.
static void move_matrices(uint32_t at, int count, uint32_t *words, bool store) {
    with_warp(at, 0, 0, 0, [=](Exchange &e, int lane) {
        for (int i = 0; i < count; ++i)
            for (int half = 0; half < 2; ++half) {
                const uint32_t row = (uint32_t)e.in[8 * i + 2 * (lane % 4) + half][0];
                if (row % 16) abort();
                uint16_t *number = reinterpret_cast<uint16_t *>(at_shared(row + lane / 4 * 2, 2));
                if (store)
                    *number = (uint16_t)(words[i] >> 16 * half);
                else
                    words[i] = (words[i] & ~(0xffffu << 16 * half)) | (uint32_t)*number << 16 * half;
            }
        return 0;
    });
}
static void store_transposed(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    uint32_t words[4] = {a, b, c, d};
    move_matrices(at, 4, words, true);
}
static void store_transposed(uint32_t at, uint32_t a, uint32_t b) {
    uint32_t words[2] = {a, b};
    move_matrices(at, 2, words, true);
}
static void load_transposed(uint32_t at, uint32_t &a, uint32_t &b) {
    uint32_t words[2] = {0, 0};
    move_matrices(at, 2, words, false);
    a = words[0], b = words[1];
}

static uint32_t round_bf16(float f) {
    const uint32_t v = __float_as_uint(f);
    return std::isnan(f) ? 0x7fff : (v + 0x7fff + ((v >> 16) & 1)) >> 16;
}
static uint32_t two(float low, float high) { return round_bf16(low) | round_bf16(high) << 16; }
static float low_of(uint32_t v) { return __uint_as_float(v << 16); }
static float high_of(uint32_t v) { return __uint_as_float(v & 0xffff0000u); }

// A matrix without swizzle whose 8 × 16 byte blocks hold rows one after the other or, TRANSPOSED, what is summed over.
static float number_at(uint64_t matrix, int row, int k) {
    const uint32_t start = (uint32_t)(matrix & 0x3fff) << 4, along_k = (uint32_t)(matrix >> 16 & 0x3fff) << 4;
    const uint32_t rows = (uint32_t)(matrix >> 32 & 0x3fff) << 4;
    const int line = TRANSPOSED ? k : row, inside = TRANSPOSED ? row : k;
    uint16_t v;
    memcpy(&v, at_shared(start + line % 8 * 16 + row / 8 * rows + k / 8 * along_k + inside % 8 * 2, 2), 2);
    return __uint_as_float((uint32_t)v << 16);
}
// One whose blocks of 16 bytes hold 8 rows each, one k after the other.
static float turned_number_at(uint64_t matrix, int row, int k) {
    const uint32_t start = (uint32_t)(matrix & 0x3fff) << 4, along_k = (uint32_t)(matrix >> 16 & 0x3fff) << 4;
    const uint32_t rows = (uint32_t)(matrix >> 32 & 0x3fff) << 4;
    uint16_t v;
    memcpy(&v, at_shared(start + k % 8 * 16 + k / 8 * along_k + row / 8 * rows + row % 8 * 2, 2), 2);
    return __uint_as_float((uint32_t)v << 16);
}
static void compute(const Product &p) {
    const int lane = now->thread % 32, warp = now->thread / 32 % 4;
    if (p.given) {
        for (int i = 0; i < p.results; ++i)
            for (int k = 0; k < 16; ++k)
                p.d[i] += p.rows[i / 2 % 2][k] * turned_number_at(p.b, i / 4 * 8 + lane % 4 * 2 + i % 2, k);
        return;
    }
    for (int j = 0; j < p.results / 4; ++j)
        for (int half = 0; half < 2; ++half)
            for (int e = 0; e < 2; ++e) {
                float sum = 0;
                for (int k = 0; k < 16; ++k)
                    sum += number_at(p.a, 16 * warp + lane / 4 + 8 * half, k) * number_at(p.b, 8 * j + lane % 4 * 2 + e, k);
                float &d = p.d[4 * j + 2 * half + e];
                d = p.add ? d + sum : sum;
            }
}
static void begin(const Product &p) {
    if (LAZY) now->waiting.push_back(p); else compute(p);
}
template <int R> static void multiply(float (&d)[R], uint64_t a, uint64_t b) { begin({d, a, b, false, R}); }
template <int R> static void multiply_add(float (&d)[R], uint64_t a, uint64_t b) { begin({d, a, b, true, R}); }
template <int R> static void multiply_rows(float (&d)[R], const uint32_t (&a)[4], uint64_t b) {
    begin(with_warp(a[0], a[1], a[2], a[3], [&](Exchange &e, int lane) {
        Product p{d, 0, b, true, R, true};
        for (int half = 0; half < 2; ++half)
            for (int k = 0; k < 16; ++k) { // a lane holds two columns of the first 8 and two of the others
                const uint32_t v = (uint32_t)e.in[lane / 4 * 4 + k % 8 / 2][k / 8 * 2 + half];
                p.rows[half][k] = k % 2 ? high_of(v) : low_of(v);
            }
        return p;
    }));
}
static void begin_products() {}
static void commit_products() { now->before = now->committed, now->committed = now->waiting.size(); }
static void compute_first(size_t count) {
    auto &waiting = now->waiting;
    for (size_t i = 0; i < count; ++i) compute(waiting[i]);
    waiting.erase(waiting.begin(), waiting.begin() + (long)count);
    now->committed = waiting.size(), now->before = 0;
}
static void wait_products_but_one() { compute_first(now->before); }
template <int R> static void wait_products(float (&)[R]) { compute_first(now->waiting.size()); }
template <int R> static void wait_all_products(float (&d)[R], float (&)[R], float (&)[R]) { wait_products(d); }

static void add_global(float *at, float4 v) { at[0] += v.x, at[1] += v.y, at[2] += v.z, at[3] += v.w; }
static void max_global(int *at, int v) { if (v > *at) *at = v; }
static float4 read_fresh(const float *at) { return {at[0], at[1], at[2], at[3]}; }
static void arrive(uint32_t *counter) { ++*counter, moved = true; }
static bool arrived(const uint32_t *counter, uint32_t target) {
    const bool there = *counter >= target;
    if (!there) {
        Fiber *self = now;
        swapcontext(&self->context, &scheduler);
        now = self, threadIdx.x = self->thread, blockIdx.x = self->block;
    }
    return there;
}
