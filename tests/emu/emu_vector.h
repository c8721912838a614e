/* emu_vector.h: the vector types of CUDA, with CUDA's alignments (a misaligned 16-byte access of a
 * kernel then faults here too). */
#ifndef MM_EMU_VECTOR_H
#define MM_EMU_VECTOR_H

#define EMU_VEC1(T, N)                                                                             \
    struct N##1                                                                                    \
    {                                                                                              \
        T x;                                                                                       \
    };                                                                                             \
    static inline N##1 make_##N##1(T x)                                                            \
    {                                                                                              \
        return N##1 {x};                                                                           \
    }
#define EMU_VEC2(T, N)                                                                             \
    struct alignas(2 * sizeof(T)) N##2                                                             \
    {                                                                                              \
        T x, y;                                                                                    \
    };                                                                                             \
    static inline N##2 make_##N##2(T x, T y)                                                       \
    {                                                                                              \
        return N##2 {x, y};                                                                        \
    }
#define EMU_VEC3(T, N)                                                                             \
    struct N##3                                                                                    \
    {                                                                                              \
        T x, y, z;                                                                                 \
    };                                                                                             \
    static inline N##3 make_##N##3(T x, T y, T z)                                                  \
    {                                                                                              \
        return N##3 {x, y, z};                                                                     \
    }
#define EMU_VEC4(T, N, A)                                                                          \
    struct alignas(A) N##4                                                                         \
    {                                                                                              \
        T x, y, z, w;                                                                              \
    };                                                                                             \
    static inline N##4 make_##N##4(T x, T y, T z, T w)                                             \
    {                                                                                              \
        return N##4 {x, y, z, w};                                                                  \
    }
#define EMU_VEC(T, N)                                                                              \
    EMU_VEC1(T, N)                                                                                 \
    EMU_VEC2(T, N) EMU_VEC3(T, N) EMU_VEC4(T, N, (sizeof(T) < 4 ? 4 * sizeof(T) : 16))
EMU_VEC(signed char, char)
EMU_VEC(unsigned char, uchar)
EMU_VEC(short, short)
EMU_VEC(unsigned short, ushort)
EMU_VEC(int, int)
EMU_VEC(unsigned, uint)
EMU_VEC(float, float)
EMU_VEC(long long, longlong)
EMU_VEC(unsigned long long, ulonglong)
EMU_VEC(double, double)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};

#endif
