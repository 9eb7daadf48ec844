/* Goes on with a token by the decode step of a LLaMA that export_models.py wrote; prints token ids.
 *
 *     cc -O2 -o decode llama.c llama.o -I. -lm
 *     ./decode llama.weights 1 64
 */
#include "llama.h"

int main(int count, char **arguments) {
    static float logits[LLAMA_LOGITS_ELEMENTS];
    llama program;
    int32_t token;
    if (count < 4) {
        fprintf(stderr, "usage: %s WEIGHTS FIRST COUNT\n", arguments[0]);
        return 2;
    }
    if (llama_open(&program, arguments[1])) {
        fprintf(stderr, "%s: expected a file of %lld bytes\n", arguments[1], (long long)LLAMA_WEIGHTS_BYTES);
        return 1;
    }
    token = atoi(arguments[2]);
    for (int position = 0; position < atoi(arguments[3]); position++) {
        if (llama_run(&program, &token, position, logits)) break; /* the cache is full */
        token = 0;
        for (int k = 1; k < LLAMA_LOGITS_ELEMENTS; k++)
            if (logits[k] > logits[token]) token = k;
        printf("%d\n", token);
    }
    llama_close(&program);
    return 0;
}
