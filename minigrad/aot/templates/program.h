/* @NAME@: a program that minigrad exported, for @TARGET@.
 *
@DESCRIPTIONS@
 *
 * Tensors are row-major and dense; half types are given by their bits. A program runs on the caller's thread. Two threads
 * may run two programs, which may share their weights.
 *
 *     @NAME@ program;
 *     if (@NAME@_open(&program, "@NAME@.weights")) return 1;
 *     @NAME@_run(&program, ...);
 *     @NAME@_close(&program);
 *
 * Link with @NAME@.o or lib@NAME@.so. Memory at the peak: weights, memory, and what is passed to a run.
 */
#ifndef @UPPER@_H
#define @UPPER@_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef _WIN32
#include <malloc.h>
#define @UPPER@_ALLOCATE(bytes) _aligned_malloc(bytes, 64)
#define @UPPER@_FREE _aligned_free
#else
#define @UPPER@_ALLOCATE(bytes) aligned_alloc(64, bytes)
#define @UPPER@_FREE free
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define @UPPER@_WEIGHTS_BYTES @WEIGHTS_BYTES@
#define @UPPER@_MEMORY_BYTES @MEMORY_BYTES@
/* Of the memory, what a run hands on to the next one. */
#define @UPPER@_STATE_BYTES @STATE_BYTES@
/* Elements of inputs and outputs, at most. */
@SIZES@

/* Both are aligned to 64 bytes and given by the caller; weights are only read. */
typedef struct @NAME@ {
    const void *weights;
    void *memory;
} @NAME@;

/* Once, when `weights` holds the file @NAME@.weights and `memory` is there: computes what depends on weights alone, and
 * resets the state. */
void @NAME@_prepare(@NAME@ *program);

/* Puts the state back to what it was when the program was exported. */
void @NAME@_reset(@NAME@ *program);

/* Returns 0, or k where size k of those passed is out of its bounds; nothing is done then. */
int32_t @NAME@_run(@PARAMETERS@);

/* Gives memory back that `open` took. */
static inline void @NAME@_close(@NAME@ *program) {
    @UPPER@_FREE((void *)program->weights);
    @UPPER@_FREE(program->memory);
    program->weights = NULL;
    program->memory = NULL;
}

/* Takes memory, reads the weights and prepares the program. Returns 0; 1 without a file of the right size, 2 without
 * memory. */
static inline int @NAME@_open(@NAME@ *program, const char *path) {
    const size_t bytes = ((size_t)@UPPER@_WEIGHTS_BYTES + 64) / 64 * 64;
    FILE *file = fopen(path, "rb");
    size_t got;
    program->weights = @UPPER@_ALLOCATE(bytes);
    program->memory = @UPPER@_ALLOCATE((size_t)@UPPER@_MEMORY_BYTES);
    if (!file || !program->weights || !program->memory) {
        int failure = file ? 2 : 1;
        if (file) fclose(file);
        @NAME@_close(program);
        return failure;
    }
    got = fread((void *)program->weights, 1, bytes, file);
    fclose(file);
    if (got != (size_t)@UPPER@_WEIGHTS_BYTES) {
        @NAME@_close(program);
        return 1;
    }
    @NAME@_prepare(program);
    return 0;
}

#ifdef __cplusplus
}
#endif

#endif
