/* The compiled half of inference_image/fundus.py. Freestanding C99: it is linked to no library, so
 * that one file serves every Linux of its architecture, whatever its C library. */

#define EXPORTED __attribute__((visibility("default")))

/* KERNEL_VERSION of inference_image/kernel.py must be the same, or the file is not used: raise both
 * when what the functions take or return changes. */
EXPORTED int dr_kernel_version(void);
EXPORTED int dr_kernel_version(void) { return 1; }
