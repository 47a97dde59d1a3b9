// Rollouts of the convolutional dynamics in one launch each way, for Hopper's tensor cores; see rollout_hopper.py.
//
// A block keeps both filters and its states in shared memory for all K steps. Blocks meet once per step, where
// BatchNorm needs the sums over the batch. A state is 7×7 positions of 64 channels; a warpgroup (128 threads) owns SW.
//
// Products: outputs (64 channels × positions) = filter (64 × 64, one of 9 taps) · states (64 channels × positions).
// The positions of a warpgroup's states are "slots" in the order (row, state, column), 8 columns of which the last is
// zero. A tap is then a shift: ±1 slot to the side lands on that zero column at a border, ±ROW slots up or down on a
// row of zeros that lies before the first row and, being that of the next channels, behind the last. In shared memory
// 8 channels of a slot are one unit of 16 bytes, PLANE units apart from the next 8, so every shift is an address.
//
// A thread holds 28 results per state: channels `channel` and `channel` + 8, columns 2·(lane % 4) and the next, 7 rows.
// In that order, as fragments (see hopper.cuh), x1f and zf are stored, zf being the states that the steps begin in and
// the last ones. Everything else is (…, 49 positions, 64 channels).
//
// hopper.cuh comes first; WARPGROUPS, SW, SPREAD and products for SW states (`multiply`, …) come from the host.

constexpr int GROUPS = 7 * SW;             // of 8 slots each: one row of one state
constexpr int RESULTS = 4 * GROUPS;        // per thread
constexpr int ROW = 8 * SW;                // slots of one row of all states
constexpr int PLANE = 8 * ROW + 1;         // a row of zeros, 7 rows and one unit, against bank conflicts
constexpr int IMAGE = 8 * PLANE + ROW + 8; // one unit before the first plane, a row of zeros behind the last
constexpr int FILTER = 9 * 8 * 64;         // units: tap, 8 inputs, output
constexpr int THREADS = 128 * WARPGROUPS;
constexpr int NO_PLACE = 64 * 64;          // places are stored as what is left up to here: 0 means none
constexpr u32 IMAGES_AT = 2 * FILTER * 16;
constexpr u32 PARTIAL_AT = IMAGES_AT + WARPGROUPS * IMAGE * 16; // (WARPGROUPS, 2 batches, 3, 64) floats
constexpr u32 EXCHANGE_AT = PARTIAL_AT + WARPGROUPS * 6 * 64 * 4; // (WARPGROUPS, SW, 4 warps, 2) words
constexpr u32 META_AT = EXCHANGE_AT + WARPGROUPS * SW * 32;       // (WARPGROUPS, SW, 4): range, minimum, their places
constexpr u32 AFFINE_AT = META_AT + WARPGROUPS * SW * 16;         // (2 batches, 3, 64) floats: BatchNorm as lines
constexpr u32 PARAMETERS_AT = AFFINE_AT + 2 * 3 * 64 * 4;           // gamma, beta and bias, 64 floats each
constexpr u32 DESCRIPTOR_AT = PARAMETERS_AT + 3 * 64 * 4;          // (4): see `convolve`
// A product that adds to what the last one found waits for it. Small ones gain if two sums take turns.
constexpr int SUMS = SW == 1 ? 2 : 1;
constexpr bool EARLY = SW < 3; // whether registers are left to load what comes after a product before it
constexpr float BN_EPS = 1e-5f, RANGE_EPS = 1e-6f;
// Named barriers: of all threads, of a warpgroup, for whose turn it is, for what may be done while blocks meet.
constexpr int ALL_BAR = 0, GROUP_BAR = 1, TURN_BAR = 8, MEETING_BAR = 15;

struct Thread { // what a thread is and owns
    int group, thread, warp, lane, pair, channel, first; // `first` of the warpgroup's SW states
    bool border;                                         // whether its second column is the zero one
    u32 shared, image, write_at;
    int odd;        // whether it copies the second of two groups of slots between image and global memory,
    u32 copy_at;    // where those lie in the image
    int copy_chunk; // and in global memory
    bool copies;
};

__device__ __forceinline__ Thread who_am_i() {
    Thread me;
    const int warp = first_lane(threadIdx.x / 32);
    me.group = warp / 4;
    me.thread = threadIdx.x % 128;
    me.warp = warp % 4;
    me.lane = me.thread % 32;
    me.pair = me.lane % 4;
    me.border = me.pair == 3;
    me.channel = 16 * me.warp + me.lane / 4;
    me.first = (blockIdx.x * WARPGROUPS + me.group) * SW;
    me.shared = shared_base();
    me.image = me.shared + IMAGES_AT + (me.group * IMAGE + 1) * 16; // the first plane
    const int plane = 2 * me.warp + me.lane / 8 % 2, group = me.lane / 16;
    me.write_at = me.image + (plane * PLANE + ROW + 8 * group + me.lane % 8) * 16;
    const int column = me.thread / 8 % 8;
    me.odd = me.thread / 64;
    me.copy_at = me.image + (me.thread % 8 * PLANE + ROW + me.thread / 8) * 16;
    me.copy_chunk = column * 8 + me.thread % 8;
    me.copies = column < 7;
    return me;
}

// To copy what the thread 32 before this one of the second warp would.
__device__ __forceinline__ Thread first_warp_of(const Thread &me) {
    Thread first = me;
    first.copy_at -= 4 * 16, first.copy_chunk -= 4 * 8, first.copies = true;
    return first;
}

__device__ __forceinline__ void group_sync(const Thread &me) { bar_sync(GROUP_BAR + me.group, 128); }

// Which word of `fragments` holds (row, state, channel + 8·half): the order of the accumulators, two columns each.
__device__ __forceinline__ constexpr int word(int row, int state, int half) { return (row * SW + state) * 2 + half; }

__device__ __forceinline__ void load_filter(const Thread &me, const uint4 *filters, int which) {
    for (int i = threadIdx.x; i < FILTER; i += THREADS)
        copy_to_shared(me.shared + (which * FILTER + i) * 16, filters + which * FILTER + i);
}

// Zeros everywhere, of which those around the states stay.
__device__ __forceinline__ void clear_image(const Thread &me) {
    for (int i = me.thread; i < IMAGE; i += 128)
        write_shared(me.image + (i - 1) * 16, uint4{0, 0, 0, 0});
    if (me.thread == 0) write_word(me.shared + DESCRIPTOR_AT + me.group * 4, (me.image >> 4) + ROW + (PLANE << 16));
    group_sync(me);
}

// Between global memory and the image 16 slots, or two groups, go in each of COPIES rounds. A round's state and, in
// units, place in that state's row of global memory:
constexpr int COPIES = (GROUPS + 1) / 2;
__device__ __forceinline__ int copy_state(bool odd, int round) {
    return odd ? (2 * round + 1) % SW : 2 * round % SW;
}
__device__ __forceinline__ int copy_unit(bool odd, int round) {
    return odd ? (2 * round + 1) % SW * CHUNKS + (2 * round + 1) / SW * 56
               : 2 * round % SW * CHUNKS + 2 * round / SW * 56;
}
// Begins to copy states [from, to) into the image, or with NOW copies them; `x` is where state `from` lies.
template <bool NOW = false>
__device__ __forceinline__ void load_image(const Thread &me, const uint4 *x, int from, int to) {
    x += (long long)(me.first - from) * CHUNKS + me.copy_chunk;
    u32 odd = me.odd;
    hide(odd);
    uint4 read[COPIES];
#pragma unroll
    for (int round = 0; round < COPIES; ++round) {
        const int n = me.first + copy_state(odd, round);
        const bool wanted = me.copies && n >= from && n < to && (2 * round + 1 < GROUPS || !odd);
        if (NOW)
            read[round] = wanted ? x[copy_unit(odd, round)] : uint4{0, 0, 0, 0};
        else if (wanted)
            copy_to_shared(me.copy_at + round * 256, x + copy_unit(odd, round));
    }
    if (NOW && me.copies) {
#pragma unroll
        for (int round = 0; round < COPIES; ++round)
            if (2 * round + 1 < GROUPS || !odd) write_shared(me.copy_at + round * 256, read[round]);
    }
}

// The image to global memory, for states in [from, to); `x` is where state `from` lies.
__device__ __forceinline__ void store_image(const Thread &me, uint4 *x, int from, int to) {
    if (me.first >= to || me.first + SW <= from) return; // the same for a whole warpgroup
    x += (long long)(me.first - from) * CHUNKS + me.copy_chunk;
    u32 odd = me.odd;
    hide(odd);
#pragma unroll
    for (int round = 0; round < COPIES; ++round) {
        const int n = me.first + copy_state(odd, round);
        const bool wanted = me.copies && n >= from && n < to && (2 * round + 1 < GROUPS || !odd);
        store_if(wanted, x + copy_unit(odd, round), read_shared(me.copy_at + round * 256));
    }
}

// Registers to the image; the tensor cores may read it afterwards.
__device__ __forceinline__ void write_image(const Thread &me, const u32 (&fragments)[RESULTS / 2]) {
#pragma unroll
    for (int j = 0; j + 1 < GROUPS; j += 2)
        store_transposed(me.write_at + j * 128, fragments[2 * j], fragments[2 * j + 1], fragments[2 * j + 2],
                         fragments[2 * j + 3]);
    constexpr int LAST = GROUPS - 1;
    if (GROUPS % 2) store_transposed(me.write_at + LAST * 128, fragments[2 * LAST], fragments[2 * LAST + 1]);
    publish_shared();
    group_sync(me);
}

__device__ __forceinline__ void store_fragments(const Thread &me, uint4 *x, const u32 (&f)[RESULTS / 2], int N) {
#pragma unroll
    for (int s = 0; s < SW; ++s) {
        if (me.first + s >= N) continue;
        uint4 *at = x + (u64)(me.first + s) * FRAGMENT;
#pragma unroll
        for (int r = 0; r < 6; r += 2)
            at[r * 64 + me.thread] =
                uint4{f[word(r, s, 0)], f[word(r, s, 1)], f[word(r + 1, s, 0)], f[word(r + 1, s, 1)]};
        ((uint2 *)(at + 3 * 128))[me.thread] = uint2{f[word(6, s, 0)], f[word(6, s, 1)]};
    }
}

// With ZERO, states that do not exist become 0; else they become any.
template <bool ZERO = false>
__device__ __forceinline__ void load_fragments(const Thread &me, const uint4 *x, u32 (&f)[RESULTS / 2], int N) {
#pragma unroll
    for (int s = 0; s < SW; ++s) {
        const int n = me.first + s < N ? me.first + s : N - 1;
        const uint4 *at = x + (u64)n * FRAGMENT;
        const bool zero = ZERO && me.first + s >= N;
#pragma unroll
        for (int r = 0; r < 6; r += 2) {
            const uint4 v = zero ? uint4{0, 0, 0, 0} : at[r * 64 + me.thread];
            f[word(r, s, 0)] = v.x, f[word(r, s, 1)] = v.y, f[word(r + 1, s, 0)] = v.z, f[word(r + 1, s, 1)] = v.w;
        }
        const uint2 v = zero ? uint2{0, 0} : ((const uint2 *)(at + 3 * 128))[me.thread];
        f[word(6, s, 0)] = v.x, f[word(6, s, 1)] = v.y;
    }
}

// The image to registers.
__device__ __forceinline__ void read_image(const Thread &me, u32 (&fragments)[RESULTS / 2]) {
#pragma unroll
    for (int j = 0; j < GROUPS; ++j) // lanes 0 to 15 give the addresses; those of the others are not used
        load_transposed(me.write_at - me.lane / 16 * 128 + j * 128, fragments[2 * j], fragments[2 * j + 1]);
}

// Warpgroups issue their products in turns, so that one begins what lies between two products before the next does.
__device__ __forceinline__ void wait_turn(const Thread &me) {
    if (WARPGROUPS > 1) bar_sync(TURN_BAR + me.group, 256);
}
__device__ __forceinline__ void pass_turn(const Thread &me) {
    if (WARPGROUPS > 1) bar_arrive(TURN_BAR + (me.group + 1) % WARPGROUPS, 256);
}
__device__ __forceinline__ void first_turn(const Thread &me) {
    if (me.group == WARPGROUPS - 1) pass_turn(me);
}
__device__ __forceinline__ void last_turn(const Thread &me) { // as many wait as have passed
    if (me.group == 0) wait_turn(me);
}

// Begins results (+)= filter · image over all taps, and returns when the last product has been issued; `other` is for a
// second sum.
template <bool ADD>
__device__ __forceinline__ void convolve(const Thread &me, float (&results)[RESULTS], float (&other)[RESULTS],
                                         int which) {
    // Matrix descriptors in units of 16 bytes: address, distance along channels, distance of 8 rows (or slots). The
    // image's is read again and again, or the compiler would keep all 36 from one convolution to the next.
    const u32 filter = (me.shared >> 4) + which * FILTER + (64 << 16);
    const u32 image = read_word(me.shared + DESCRIPTOR_AT + me.group * 4);
    wait_turn(me);
    begin_products();
#pragma unroll
    for (int tap = 0; tap < 9; ++tap)
#pragma unroll
        for (int part = 0; part < 4; ++part) { // 16 channels each
            const u64 a = (u64)8 << 32 | (filter + (tap * 8 + part * 2) * 64);
            const u64 b = (u64)8 << 32 | (image + (tap / 3 - 1) * ROW + tap % 3 - 1 + part * 2 * PLANE);
            if (SUMS == 2 && part % 2)
                tap + part == 1 ? multiply(other, a, b) : multiply_add(other, a, b);
            else
                !ADD && tap + part == 0 ? multiply(results, a, b) : multiply_add(results, a, b);
        }
    commit_products();
    pass_turn(me);
}

// Waits for the results of `convolve`.
__device__ __forceinline__ void finish(float (&results)[RESULTS], float (&other)[RESULTS]) {
    wait_products(results);
    if (SUMS == 2) {
        wait_products(other);
#pragma unroll
        for (int i = 0; i < RESULTS; ++i) results[i] += other[i];
    }
}

// Without this the compiler would unpack words once and keep twice as many registers until their next use.
__device__ __forceinline__ void keep_packed(u32 (&words)[RESULTS / 2]) {
#pragma unroll
    for (int i = 0; i < RESULTS / 2; ++i) hide(words[i]);
}

// Puts a warpgroup's sum number I of COUNT, by batch and channel, where `meet` finds it.
template <int COUNT, int I>
__device__ __forceinline__ void add_up(const Thread &me, const float (&mine)[2][2]) {
#pragma unroll
    for (int batch = 0; batch < 2; ++batch)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float v = mine[batch][h];
            v += shuffle_xor(v, 1);
            v += shuffle_xor(v, 2);
            const int at = ((me.group * 2 + batch) * COUNT + I) * 64 + me.channel + 8 * h;
            if (me.pair == 0) write_word(me.shared + PARTIAL_AT + at * 4, __float_as_uint(v));
        }
}

// Adds the block's sums to those of every SPREAD-th block, `sums` (2 batches, COUNT, 64) being the first of SPREAD
// lists that lie `apart` floats apart, and waits until all blocks have. (To send each sum to one block and its total
// back, by words that need no fence, took 5,200 cycles instead of 3,500.) While blocks meet, `store_own` is done, and
// `store(as)` for every thread, by the second warp for the first one as well, which waits for the other blocks; then
// `conclude(batch, channel)` by 32 threads, for four channels each, and all go on. Stores that were under way when a
// block arrives would hold it up, so that most are made here.
template <int COUNT, class OwnStores, class Stores, class Conclusion>
__device__ __forceinline__ void meet(const Thread &me, float *sums, int apart, u32 *counter, u32 target, int num_kept,
                                     OwnStores store_own, Stores store, Conclusion conclude) {
    const u32 partial = me.shared + PARTIAL_AT;
    bar_sync(ALL_BAR, THREADS);
    if (me.group == 0 && me.warp == 0) {
        const int begin = blockIdx.x * WARPGROUPS * SW, end = begin + WARPGROUPS * SW;
#pragma unroll
        for (int round = 0; round < COUNT; ++round) {
            const int i = round * 32 + me.lane, batch = i / (COUNT * 16);
            float4 total = {0, 0, 0, 0};
#pragma unroll
            for (int g = 0; g < WARPGROUPS; ++g) {
                const uint4 v = read_shared(partial + (g * 2 * COUNT * 16 + i) * 16);
                total.x += __uint_as_float(v.x), total.y += __uint_as_float(v.y);
                total.z += __uint_as_float(v.z), total.w += __uint_as_float(v.w);
            }
            if (batch == 0 ? begin < num_kept : end > num_kept)
                add_global(sums + blockIdx.x % SPREAD * apart + i * 4, total);
        }
        warp_sync();
        if (me.lane == 0) arrive(counter);
        bar_arrive(MEETING_BAR, THREADS);
        store_own();
        if (me.lane == 0)
            while (!arrived(counter, target)) {}
        warp_sync();
        conclude(me.lane / 16, me.lane % 16 * 4);
    } else {
        bar_sync(MEETING_BAR, THREADS);
        store_own();
        store(me);
        if (me.group == 0 && me.warp == 1) store(first_warp_of(me));
    }
    wait_copies(); // of filters, at first
    publish_shared();
    bar_sync(ALL_BAR, THREADS);
}

// Four channels' sums over all lists of `meet`.
__device__ __forceinline__ void read_sums(const float *sums, int apart, float (&v)[4]) {
    float4 read[SPREAD];
#pragma unroll
    for (int i = 0; i < SPREAD; ++i) read[i] = read_fresh(sums + i * apart);
#pragma unroll
    for (int i = 0; i < SPREAD; ++i) {
        v[0] = i ? v[0] + read[i].x : read[i].x, v[1] = i ? v[1] + read[i].y : read[i].y;
        v[2] = i ? v[2] + read[i].z : read[i].z, v[3] = i ? v[3] + read[i].w : read[i].w;
    }
}

__device__ __forceinline__ float one_by_count(int batch, int num_kept, int N) {
    const int states = batch ? N - num_kept : num_kept;
    return 1.0f / (float)((states > 0 ? states : 1) * POSITIONS);
}

// BatchNorm's mean and 1 / standard deviation from a channel's sums of x and x².
__device__ __forceinline__ void moments(float sum, float square, float by_count, float &mean, float &rstd) {
    mean = sum * by_count;
    rstd = reciprocal_root(fmaxf(square * by_count - mean * mean, 0.0f) + BN_EPS);
}

__device__ __forceinline__ void write_affine(const Thread &me, int batch, int which, int channel, const float (&v)[4]) {
    const u32 at = me.shared + AFFINE_AT + ((batch * 3 + which) * 64 + channel) * 4;
    write_shared(at, uint4{__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3])});
}
__device__ __forceinline__ float affine(const Thread &me, int batch, int which, int half) {
    return __uint_as_float(read_word(me.shared + AFFINE_AT + ((batch * 3 + which) * 64 + me.channel + 8 * half) * 4));
}
__device__ __forceinline__ void parameter(const Thread &me, int which, int channel, float (&v)[4]) {
    const uint4 found = read_shared(me.shared + PARAMETERS_AT + (which * 64 + channel) * 4);
    v[0] = __uint_as_float(found.x), v[1] = __uint_as_float(found.y);
    v[2] = __uint_as_float(found.z), v[3] = __uint_as_float(found.w);
}
__device__ __forceinline__ void four(float4 from, float (&to)[4]) {
    to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}

// The first place of a value among a thread's results of one state.
__device__ __forceinline__ int first_place(const Thread &me, const float (&results)[RESULTS], int state, float value) {
    int found = 0;
#pragma unroll
    for (int i = 27; i >= 0; --i) { // row, column, half
        const int row = i / 4, e = i / 2 % 2, h = i % 2;
        if (results[2 * word(row, state, h) + e] == value) found = (row * 7 + e) * 64 + 8 * h;
    }
    return found + 2 * me.pair * 64 + me.channel; // at the border both columns hold the first, which is found last
}

// What the actions of a step add to the first convolution: in the first row, in those between and in the last one.
typedef float Maps[SW][3][2][2];
__device__ __forceinline__ void load_maps(const Thread &me, const float *maps, const int (&action)[SW], Maps &map) {
#pragma unroll
    for (int s = 0; s < SW; ++s) {
        const float *at = maps + action[s] * POSITIONS * 64 + me.channel;
#pragma unroll
        for (int kind = 0; kind < 3; ++kind)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int row = kind == 0 ? 0 : kind == 1 ? 1 : 6, column = me.border ? 6 : 2 * me.pair + e;
                map[s][kind][0][e] = read_in_order(at + (row * 7 + column) * 64);
                map[s][kind][1][e] = read_in_order(at + (row * 7 + column) * 64 + 8);
            }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    rollout_forward(const uint4 *z, const long long *actions, const float *maps, const uint4 *filters,
                    const float *gamma, const float *beta, const float *bias, uint4 *kept, uint4 *last, uint4 *x1f,
                    uint4 *zf, float *lines, float *sums, float *lists, float *meta, u32 *counter, int N,
                    int num_kept, int K) {
    const Thread me = who_am_i();
    const u32 exchange = me.shared + EXCHANGE_AT + me.group * SW * 32;
    load_filter(me, filters, 0);
    clear_image(me);
    load_image(me, z, 0, N);
    commit_copies();
    load_filter(me, filters, 1);
    commit_copies();
    if (threadIdx.x < 64) {
        write_word(me.shared + PARAMETERS_AT + threadIdx.x * 4, __float_as_uint(gamma[threadIdx.x]));
        write_word(me.shared + PARAMETERS_AT + 256 + threadIdx.x * 4, __float_as_uint(beta[threadIdx.x]));
        write_word(me.shared + PARAMETERS_AT + 512 + threadIdx.x * 4, __float_as_uint(bias[threadIdx.x]));
    }
    const long long *action_at = actions + (u64)(me.first < N ? me.first : N - 1) * K;
    int action[SW];
#pragma unroll
    for (int s = 0; s < SW; ++s) action[s] = (int)action_at[me.first + s < N ? s * K : 0];
    Maps map;
    load_maps(me, maps, action, map);
    wait_copies_but_one();
    publish_shared();
    bar_sync(ALL_BAR, THREADS);
    first_turn(me);
    u32 fragments[RESULTS / 2];
    read_image(me, fragments);
    for (int k = 0; k < K; ++k) {
        const u64 step = (u64)k * N;
        float first[RESULTS], acc[RESULTS], other[RESULTS];
#pragma unroll
        for (int i = 0; i < RESULTS / 2; ++i) {
            const int row = i / (2 * SW), kind = row == 0 ? 0 : row < 6 ? 1 : 2;
            first[2 * i] = map[i / 2 % SW][kind][i % 2][0];
            first[2 * i + 1] = map[i / 2 % SW][kind][i % 2][1];
        }
        convolve<true>(me, first, other, 0);
#pragma unroll
        for (int s = 0; s < SW; ++s) // of the next step
            action[s] = (int)action_at[(me.first + s < N ? s * K : 0) + (k + 1 < K ? k + 1 : k)];
        store_fragments(me, zf + step * FRAGMENT, fragments, N); // the state that the step begins in
        finish(first, other);
        float sums_x[2][2] = {}, sums_xx[2][2] = {};
#pragma unroll
        for (int s = 0; s < SW; ++s) {
            const bool exists = me.first + s < N, second = me.first + s >= num_kept;
            float sum[2] = {0, 0}, square[2] = {0, 0};
#pragma unroll
            for (int r = 0; r < 7; ++r)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int i = word(r, s, h);
                    const float a = fmaxf(first[2 * i], 0.0f);
                    const float b = me.border ? 0.0f : fmaxf(first[2 * i + 1], 0.0f);
                    fragments[i] = two(a, b);
                    const float ra = low_of(fragments[i]), rb = high_of(fragments[i]);
                    sum[h] += ra + rb;
                    square[h] += ra * ra + rb * rb;
                }
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                sums_x[0][h] += exists && !second ? sum[h] : 0.0f;
                sums_x[1][h] += exists && second ? sum[h] : 0.0f;
                sums_xx[0][h] += exists && !second ? square[h] : 0.0f;
                sums_xx[1][h] += exists && second ? square[h] : 0.0f;
            }
        }
        add_up<2, 0>(me, sums_x);
        add_up<2, 1>(me, sums_xx);
        keep_packed(fragments);
        meet<2>(
            me, lists + k * 256, K * 256, counter, (k + 1) * gridDim.x, num_kept,
            [&]() { store_fragments(me, x1f + step * FRAGMENT, fragments, N); },
            [&](const Thread &as) {
                if (k > 0) store_image(as, kept + (u64)(k - 1) * num_kept * CHUNKS, 0, num_kept);
            },
            [&](int batch, int channel) {
                const float *at = lists + k * 256 + batch * 128 + channel;
                float x[4], xx[4], weight[4], shift[4], scale[4], offset[4];
                read_sums(at, K * 256, x), read_sums(at + 64, K * 256, xx);
                parameter(me, 0, channel, weight), parameter(me, 1, channel, shift);
                const float by_count = one_by_count(batch, num_kept, N);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float mean, rstd;
                    moments(x[i], xx[i], by_count, mean, rstd);
                    scale[i] = weight[i] * rstd;
                    offset[i] = shift[i] - mean * scale[i];
                }
                write_affine(me, batch, 0, channel, scale);
                write_affine(me, batch, 1, channel, offset);
                if (blockIdx.x == 0) {
                    const int first = k * 256 + batch * 128 + channel;
                    float *line = lines + first, *sum = sums + first;
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        line[i] = scale[i], line[64 + i] = offset[i], sum[i] = x[i], sum[64 + i] = xx[i];
                }
            });
        keep_packed(fragments);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float scales[2] = {affine(me, 0, 0, h), affine(me, 1, 0, h)};
            const float offsets[2] = {affine(me, 0, 1, h), affine(me, 1, 1, h)};
#pragma unroll
            for (int s = 0; s < SW; ++s) {
                const bool second = me.first + s >= num_kept;
                const float scale = second ? scales[1] : scales[0], offset = second ? offsets[1] : offsets[0];
#pragma unroll
                for (int r = 0; r < 7; ++r) {
                    u32 &f = fragments[word(r, s, h)];
                    f = two(low_of(f) * scale + offset, me.border ? 0.0f : high_of(f) * scale + offset);
                }
            }
        }
        write_image(me, fragments);
        float another[RESULTS];
        convolve<false>(me, acc, another, 1);
        if (EARLY) load_maps(me, maps, action, map);
        const float b0 = __uint_as_float(read_word(me.shared + PARAMETERS_AT + 512 + me.channel * 4));
        const float b1 = __uint_as_float(read_word(me.shared + PARAMETERS_AT + 512 + me.channel * 4 + 32));
        finish(acc, another);
        float low[SW], high[SW];
#pragma unroll
        for (int s = 0; s < SW; ++s) {
            low[s] = 3e38f, high[s] = 0.0f;
#pragma unroll
            for (int r = 0; r < 7; ++r)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int i = 2 * word(r, s, h);
                    acc[i] = fmaxf(acc[i] + (h ? b1 : b0), 0.0f);
                    acc[i + 1] = me.border ? acc[i] : fmaxf(acc[i + 1] + (h ? b1 : b0), 0.0f);
                    high[s] = fmaxf(high[s], fmaxf(acc[i], acc[i + 1]));
                    low[s] = fminf(low[s], fminf(acc[i], acc[i + 1]));
                }
            // Bits of floats that are not negative are in the order of the numbers.
            const u32 top = warp_max(__float_as_uint(high[s])), bottom = warp_min(__float_as_uint(low[s]));
            if (me.lane == 0) {
                write_word(exchange + (s * 4 + me.warp) * 8, top);
                write_word(exchange + (s * 4 + me.warp) * 8 + 4, bottom);
            }
        }
        group_sync(me);
        float tops[SW], bottoms[SW];
#pragma unroll
        for (int s = 0; s < SW; ++s) {
            const uint4 a = read_shared(exchange + s * 32), b = read_shared(exchange + s * 32 + 16);
            tops[s] = fmaxf(fmaxf(__uint_as_float(a.x), __uint_as_float(a.z)),
                            fmaxf(__uint_as_float(b.x), __uint_as_float(b.z)));
            bottoms[s] = fminf(fminf(__uint_as_float(a.y), __uint_as_float(a.w)),
                               fminf(__uint_as_float(b.y), __uint_as_float(b.w)));
        }
#pragma unroll
        for (int s = 0; s < SW; ++s) {
            const float spread = fmaxf(tops[s] - bottoms[s], RANGE_EPS), factor = reciprocal(spread);
            const int n = me.first + s;
            if (me.thread == 0 && n < N) meta[(step + n) * 4] = spread, meta[(step + n) * 4 + 1] = bottoms[s];
#pragma unroll
            for (int r = 0; r < 7; ++r)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int i = word(r, s, h);
                    const float a = (acc[2 * i] - bottoms[s]) * factor, b = (acc[2 * i + 1] - bottoms[s]) * factor;
                    fragments[i] = two(a, me.border ? 0.0f : b);
                }
        }
#pragma unroll
        for (int s = 0; s < SW; ++s) {
            // The first place of either. At a minimum of 0 the ReLU passes nothing on: its place is not needed.
            const int n = me.first + s;
            int *places = (int *)(meta + (step + n) * 4) + 2;
            if (n < N && high[s] == tops[s]) max_global(places, NO_PLACE - first_place(me, acc, s, tops[s]));
            if (bottoms[s] > 0.0f && n < N && low[s] == bottoms[s])
                max_global(places + 1, NO_PLACE - first_place(me, acc, s, bottoms[s]));
        }
        keep_packed(fragments);
        if (!EARLY) load_maps(me, maps, action, map);
        write_image(me, fragments);
    }
    store_fragments(me, zf + (u64)K * N * FRAGMENT, fragments, N);
    store_image(me, kept + (u64)(K - 1) * num_kept * CHUNKS, 0, num_kept);
    store_image(me, last, num_kept, N);
    last_turn(me);
}

// Turns (count, 49 positions, 64 channels) into fragments, SW at a time by each warpgroup of the grid.
__device__ __forceinline__ void turn_into_fragments(const Thread &me, const uint4 *x, uint4 *to, int count) {
    Thread other = me;
    for (other.first = me.first; other.first < count; other.first += gridDim.x * WARPGROUPS * SW) {
        u32 fragments[RESULTS / 2];
        load_image<true>(other, x, 0, count);
        group_sync(me);
        read_image(me, fragments);
        group_sync(me);
        store_fragments(other, to, fragments, count);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    rollout_backward(const uint4 *g_kept, const uint4 *g_last, const float *gamma, const uint4 *filters,
                     const uint4 *x1f, const uint4 *zf, const float *sums, const uint4 *meta, uint4 *du, uint4 *dx,
                     uint4 *dz, float *dsums, float *totals, uint4 *given, u32 *counter, int N, int num_kept, int K) {
    const Thread me = who_am_i();
    const u32 exchange = me.shared + EXCHANGE_AT + me.group * SW * 32;
    const u32 described = me.shared + META_AT + me.group * SW * 16;
    const int mine = me.first + (me.thread < SW ? me.thread : 0); // the state whose range and places it fetches
    load_filter(me, filters, 1);
    clear_image(me);
    // What is given for the states before the last is needed when all blocks have met for the first time.
    if (g_kept != nullptr) turn_into_fragments(me, g_kept, given, (K - 1) * num_kept);
    if (g_kept != nullptr) load_image(me, g_kept + (u64)(K - 1) * num_kept * CHUNKS, 0, num_kept);
    if (g_last != nullptr) load_image(me, g_last, num_kept, N);
    if (me.thread < SW && mine < N) copy_to_shared(described + me.thread * 16, meta + (u64)(K - 1) * N + mine);
    commit_copies();
    load_filter(me, filters, 0);
    commit_copies();
    if (threadIdx.x < 64) write_word(me.shared + PARAMETERS_AT + threadIdx.x * 4, __float_as_uint(gamma[threadIdx.x]));
    float acc[RESULTS];
    u32 saved[RESULTS / 2];
    load_fragments(me, zf + (u64)K * N * FRAGMENT, saved, N);
    wait_copies_but_one();
    publish_shared();
    bar_sync(ALL_BAR, THREADS);
    {
        u32 fragments[RESULTS / 2];
        read_image(me, fragments);
#pragma unroll
        for (int i = 0; i < RESULTS / 2; ++i) {
            const bool wanted = i / 2 % SW + me.first < num_kept ? g_kept != nullptr : g_last != nullptr;
            acc[2 * i] = wanted ? low_of(fragments[i]) : 0.0f;
            acc[2 * i + 1] = wanted ? high_of(fragments[i]) : 0.0f;
        }
    }
    first_turn(me);
    for (int k = K - 1; k >= 0; --k) {
        const u64 step = (u64)k * N;
        u32 fragments[RESULTS / 2];
        float sums_du[2][2] = {}, sums_dy[2][2] = {}, sums_dyx[2][2] = {};
        // Rescaling′ and ReLU′: acc is dL/dz, saved is z.
#pragma unroll
        for (int s = 0; s < SW; ++s) {
            float total = 0, moved = 0;
#pragma unroll
            for (int r = 0; r < 7; ++r)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int i = word(r, s, h);
                    if (me.border) acc[2 * i + 1] = 0.0f;
                    total += acc[2 * i] + acc[2 * i + 1];
                    moved += acc[2 * i] * low_of(saved[i]) + acc[2 * i + 1] * high_of(saved[i]);
                }
#pragma unroll
            for (int mask = 16; mask > 0; mask /= 2)
                total += shuffle_xor(total, mask), moved += shuffle_xor(moved, mask);
            if (me.lane == 0) {
                write_word(exchange + (s * 4 + me.warp) * 8, __float_as_uint(total));
                write_word(exchange + (s * 4 + me.warp) * 8 + 4, __float_as_uint(moved));
            }
        }
        wait_copies(); // of what describes the states
        group_sync(me);
        keep_packed(saved);
#pragma unroll
        for (int s = 0; s < SW; ++s) {
            const uint4 a = read_shared(exchange + s * 32), b = read_shared(exchange + s * 32 + 16);
            const float total =
                __uint_as_float(a.x) + __uint_as_float(a.z) + __uint_as_float(b.x) + __uint_as_float(b.z);
            float moved = __uint_as_float(a.y) + __uint_as_float(a.w) + __uint_as_float(b.y) + __uint_as_float(b.w);
            const bool exists = me.first + s < N, second = me.first + s >= num_kept;
            const uint4 about = read_shared(described + s * 16);
            const float spread = __uint_as_float(about.x), bottom = __uint_as_float(about.y);
            const float factor = exists ? reciprocal(spread) : 0.0f;
            if (!(spread > RANGE_EPS)) moved = 0.0f; // a range at its guard does not depend on max and min
#pragma unroll
            for (int which = 0; which < 2; ++which) {
                const int place = NO_PLACE - (int)(which ? about.w : about.z), c = place % 64, p = place / 64;
                if (exists && p < POSITIONS && c / 16 == me.warp && c % 8 == me.lane / 4 && p % 7 / 2 == me.pair) {
                    const float change = which ? moved - total : -moved;
                    const int number = (p / 7 * 2 + c / 8 % 2) * 2 + p % 7 % 2;
#pragma unroll
                    for (int i = 0; i < 28; ++i)
                        acc[2 * word(i / 4, s, i / 2 % 2) + i % 2] += number == i ? change : 0.0f;
                }
            }
            const u32 all = bottom > 0.0f ? 0xffffffffu : 0; // then everything was positive; else what is not 0
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float sum = 0;
#pragma unroll
                for (int r = 0; r < 7; ++r) {
                    const int i = word(r, s, h);
                    const float x = (saved[i] | all) & 0xffffu ? acc[2 * i] * factor : 0.0f;
                    const float v = (saved[i] | all) & 0xffff0000u ? acc[2 * i + 1] * factor : 0.0f;
                    fragments[i] = two(x, v);
                    sum += low_of(fragments[i]) + high_of(fragments[i]);
                }
                sums_du[0][h] += second ? 0.0f : sum;
                sums_du[1][h] += second ? sum : 0.0f;
            }
        }
        keep_packed(fragments);
        add_up<3, 2>(me, sums_du);
        if (EARLY) load_fragments(me, x1f + step * FRAGMENT, saved, N);
        write_image(me, fragments);
        float dy[RESULTS], other[RESULTS];
        convolve<false>(me, dy, other, 1);
        if (!EARLY) load_fragments(me, x1f + step * FRAGMENT, saved, N);
        finish(dy, other);
        keep_packed(saved);
        // saved is x1.
#pragma unroll
        for (int s = 0; s < SW; ++s) {
            const bool exists = me.first + s < N, second = me.first + s >= num_kept;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float sum = 0, product = 0;
#pragma unroll
                for (int r = 0; r < 7; ++r) {
                    const int i = word(r, s, h);
                    fragments[i] = two(dy[2 * i], me.border ? 0.0f : dy[2 * i + 1]);
                    const float a = low_of(fragments[i]), b = high_of(fragments[i]);
                    sum += a + b;
                    product += a * low_of(saved[i]) + b * high_of(saved[i]);
                }
                sums_dy[0][h] += exists && !second ? sum : 0.0f;
                sums_dy[1][h] += exists && second ? sum : 0.0f;
                sums_dyx[0][h] += exists && !second ? product : 0.0f;
                sums_dyx[1][h] += exists && second ? product : 0.0f;
            }
        }
        add_up<3, 0>(me, sums_dy);
        add_up<3, 1>(me, sums_dyx);
        keep_packed(saved);
        keep_packed(fragments);
        meet<3>(
            me, dsums + k * 384, K * 384, counter, (K - k) * gridDim.x, num_kept,
            []() {}, [&](const Thread &as) { store_image(as, du + step * CHUNKS, 0, N); },
            [&](int batch, int channel) {
                const float *there = sums + k * 256 + batch * 128 + channel;
                const float *at = dsums + k * 384 + batch * 192 + channel;
                float x[4], xx[4], d[4], dx[4], u[4], weight[4], scale[4], slope[4], offset[4];
                four(read_fresh(there), x), four(read_fresh(there + 64), xx);
                read_sums(at, K * 384, d), read_sums(at + 64, K * 384, dx), read_sums(at + 128, K * 384, u);
                parameter(me, 0, channel, weight);
                const float by_count = one_by_count(batch, num_kept, N);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float mean, rstd;
                    moments(x[i], xx[i], by_count, mean, rstd);
                    dx[i] = rstd * (dx[i] - mean * d[i]); // the sum of dy · x̂
                    // scale · (dy − mean(dy) − x̂ · mean(dy·x̂)) as one line in dy and x1, per channel.
                    scale[i] = weight[i] * rstd;
                    slope[i] = -scale[i] * rstd * dx[i] * by_count;
                    offset[i] = -scale[i] * d[i] * by_count - slope[i] * mean;
                }
                write_affine(me, batch, 0, channel, scale);
                write_affine(me, batch, 1, channel, slope);
                write_affine(me, batch, 2, channel, offset);
                if (blockIdx.x == 0) {
                    float *total = totals + k * 384 + batch * 192 + channel;
#pragma unroll
                    for (int i = 0; i < 4; ++i) total[i] = d[i], total[64 + i] = dx[i], total[128 + i] = u[i];
                }
            });
        keep_packed(saved);
        keep_packed(fragments);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float scales[2], slopes[2], offsets[2];
#pragma unroll
            for (int batch = 0; batch < 2; ++batch) {
                scales[batch] = affine(me, batch, 0, h);
                slopes[batch] = affine(me, batch, 1, h);
                offsets[batch] = affine(me, batch, 2, h);
            }
#pragma unroll
            for (int s = 0; s < SW; ++s) {
                const bool exists = me.first + s < N, second = me.first + s >= num_kept;
                const float a = second ? scales[1] : scales[0], b = second ? slopes[1] : slopes[0];
                const float c = second ? offsets[1] : offsets[0];
#pragma unroll
                for (int r = 0; r < 7; ++r) {
                    const int i = word(r, s, h);
                    const float x0 = low_of(saved[i]), x1 = high_of(saved[i]); // x1 is 0 at the border
                    const float d0 = exists && x0 > 0.0f ? a * low_of(fragments[i]) + b * x0 + c : 0.0f;
                    const float d1 = exists && x1 > 0.0f ? a * high_of(fragments[i]) + b * x1 + c : 0.0f;
                    fragments[i] = two(d0, d1);
                }
            }
        }
        if (EARLY && k > 0) load_fragments(me, zf + step * FRAGMENT, saved, N);
        if (k > 0 && me.thread < SW && mine < N) copy_to_shared(described + me.thread * 16, meta + step - N + mine);
        write_image(me, fragments);
        const bool receives = k > 0 && g_kept != nullptr && me.first < num_kept; // the same for a whole warpgroup
        const uint4 *given_here = given + (u64)(k - 1) * num_kept * FRAGMENT;
        if (EARLY && receives) load_fragments<true>(me, given_here, fragments, num_kept);
        float next[RESULTS], another[RESULTS];
        convolve<false>(me, next, another, 0);
        store_image(me, dx + step * CHUNKS, 0, N);
        if (!EARLY && k > 0) load_fragments(me, zf + step * FRAGMENT, saved, N);
        if (!EARLY && receives) load_fragments<true>(me, given_here, fragments, num_kept);
        finish(next, another);
#pragma unroll
        for (int i = 0; i < RESULTS; ++i) acc[i] = next[i];
        keep_packed(saved);
        if (receives) {
#pragma unroll
            for (int i = 0; i < RESULTS / 2; ++i)
                acc[2 * i] += low_of(fragments[i]), acc[2 * i + 1] += high_of(fragments[i]);
        }
    }
    u32 fragments[RESULTS / 2];
#pragma unroll
    for (int i = 0; i < RESULTS / 2; ++i) fragments[i] = two(acc[2 * i], me.border ? 0.0f : acc[2 * i + 1]);
    group_sync(me); // the image has been read
    write_image(me, fragments);
    store_image(me, dz, 0, N);
    last_turn(me);
}

// Both filters (out, in, 3, 3), of any strides, as (2, 9, inputs / 8, outputs, 8) and the other way round for the way
// back: (2, 9 flipped, outputs / 8, inputs, 8). 288 blocks of 256 threads: 16 per tap and filter. Also makes `work` 0.
extern "C" __global__ void pack_filters(const float *w1, const float *w2, unsigned short *there, unsigned short *back,
                                        int out1, int in1, int tap1, int out2, int in2, int tap2, u32 *work,
                                        int words) {
    const int tap = blockIdx.x / 16 % 9, which = blockIdx.x / 144, i = blockIdx.x % 16 * 256 + threadIdx.x;
    for (int j = blockIdx.x * blockDim.x + threadIdx.x; j < words; j += gridDim.x * blockDim.x) work[j] = 0;
    const float *w = which ? w2 + tap * tap2 : w1 + tap * tap1;
    const int out = i / 64, in = i % 64;
    const u32 v = two(w[out * (which ? out2 : out1) + in * (which ? in2 : in1)], 0.0f);
    there[(((which * 9 + tap) * 8 + in / 8) * 64 + out) * 8 + in % 8] = (unsigned short)v;
    back[(((which * 9 + 8 - tap) * 8 + out / 8) * 64 + in) * 8 + out % 8] = (unsigned short)v;
}
