/* Copies a list of descriptors: blocks of threads take them in turn, each moves one at a time.
 *
 * Either side may be memory of the GPU or registered memory of the host. Every thread has several 16-byte words in
 * flight, since a read from host memory takes more than a microsecond. What is not aligned alike on both sides, and the
 * last bytes, go by smaller words. Compiled at run time, so nothing is included.
 */
typedef unsigned char byte;
typedef unsigned long long word;

constexpr int IN_FLIGHT = 4; /* words of a thread */

template <typename T>
__device__ __forceinline__ void copy_words(const byte *source, byte *destination, word count) {
    const T *from = reinterpret_cast<const T *>(source);
    T *to = reinterpret_cast<T *>(destination);
    const word stride = blockDim.x;
    word i = threadIdx.x;
    for (; i + (IN_FLIGHT - 1) * stride < count; i += IN_FLIGHT * stride) {
        T held[IN_FLIGHT];
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++) held[k] = __ldcs(from + i + k * stride);
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++) __stcs(to + i + k * stride, held[k]);
    }
    for (; i < count; i += stride) __stcs(to + i, __ldcs(from + i));
}

extern "C" __global__ void __launch_bounds__(512)
hwreplay_copy(const word *sources, const word *destinations, const word *sizes, word count) {
    for (word d = blockIdx.x; d < count; d += gridDim.x) {
        const byte *source = reinterpret_cast<const byte *>(sources[d]);
        byte *destination = reinterpret_cast<byte *>(destinations[d]);
        const word size = sizes[d];
        const word both = sources[d] | destinations[d];
        word done = 0;
        if ((both & 15) == 0) {
            done = size & ~15ull;
            copy_words<uint4>(source, destination, done / 16);
        } else if ((both & 7) == 0) {
            done = size & ~7ull;
            copy_words<word>(source, destination, done / 8);
        }
        copy_words<byte>(source + done, destination + done, size - done);
    }
}
