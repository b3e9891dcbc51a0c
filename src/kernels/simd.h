// How the kernels are vectorised: plain loops, compiled for several instruction sets and chosen when the program loads. The files are compiled with
// -O3 -fno-math-errno -fno-trapping-math (CMakeLists.txt); an optimize attribute here would switch the vectoriser off in the clones.
#pragma once

// The sanitizers' start-up and the resolvers of function clones do not mix.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DS_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DS_SIMD
#endif
