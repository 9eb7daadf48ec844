/* Classifies an image by the EfficientNet that export_models.py wrote.
 *
 *     cc -O2 -o classify efficientnet.c efficientnet.o -I. -lm
 *     ./classify efficientnet.weights image [logits]
 *
 * `image` has the float32 elements [1, 3, H, W] that the model takes; `logits` gets what the model gives.
 */
#include "efficientnet.h"

int main(int count, char **arguments) {
    static float image[EFFICIENTNET_IMAGE_ELEMENTS], logits[EFFICIENTNET_LOGITS_ELEMENTS];
    efficientnet program;
    int best = 0;
    FILE *file;
    if (count < 3) {
        fprintf(stderr, "usage: %s WEIGHTS IMAGE [LOGITS]\n", arguments[0]);
        return 2;
    }
    if (efficientnet_open(&program, arguments[1])) {
        fprintf(stderr, "%s: expected a file of %lld bytes\n", arguments[1], (long long)EFFICIENTNET_WEIGHTS_BYTES);
        return 1;
    }
    file = fopen(arguments[2], "rb");
    if (!file || fread(image, sizeof image, 1, file) != 1) {
        fprintf(stderr, "%s: expected %zu bytes\n", arguments[2], sizeof image);
        return 1;
    }
    fclose(file);
    efficientnet_run(&program, image, logits);
    for (int k = 1; k < EFFICIENTNET_LOGITS_ELEMENTS; k++)
        if (logits[k] > logits[best]) best = k;
    printf("class %d, logit %g\n", best, logits[best]);
    if (count > 3) {
        file = fopen(arguments[3], "wb");
        if (!file || fwrite(logits, sizeof logits, 1, file) != 1 || fclose(file)) return 1;
    }
    efficientnet_close(&program);
    return 0;
}
