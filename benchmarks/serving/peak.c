/* How many multiplications with an addition a core can do: the same two instructions that the
 * engines' inner loops consist of, on registers alone, so that neither memory nor anything else
 * keeps the core waiting. 24 sums that do not wait for each other are more than any core needs.
 *
 * Ask `peak.py`, which looks first whether the processor knows the instructions. */

#define SUMS(x) \
    x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9) x(10) x(11) \
    x(12) x(13) x(14) x(15) x(16) x(17) x(18) x(19) x(20) x(21) x(22) x(23)
#define REGISTERS \
    "cc", "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", \
    "zmm10", "zmm11", "zmm12", "zmm13", "zmm14", "zmm15", "zmm16", "zmm17", "zmm18", "zmm19", \
    "zmm20", "zmm21", "zmm22", "zmm23"
/* Registers 24 and above hold whatever they hold; what the sums come to is of no interest. Zeros
 * are set, since some floating-point values are slower than others. */
#define LOOP(product) \
    __asm__ volatile( \
        "vpxorq %%zmm30, %%zmm30, %%zmm30\n\tvpxorq %%zmm31, %%zmm31, %%zmm31\n" \
        SUMS(ZERO) \
        "1:\n" SUMS(product) "dec %0\n\tjnz 1b\n" \
        : "+r"(turns) : : REGISTERS, "zmm30", "zmm31")
#define ZERO(n) "vpxorq %%zmm" #n ", %%zmm" #n ", %%zmm" #n "\n\t"
#define FLOATS(n) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #n "\n\t"
#define BYTES(n) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #n "\n\t"

/* 24 sums of 16 products in each turn. */
void dr_float_products(long turns) { LOOP(FLOATS); }

/* 24 sums of 64 products in each turn. */
void dr_byte_products(long turns) { LOOP(BYTES); }
