// A tool in C: counts lines, words and bytes. No C library, hence no imports, hence nothing to grant.
//
// The two exports are what the canonical ABI asks for: memory for the caller's text, and `run`, which returns the address
// of its result. `wit-bindgen c` would write them; with a single function it is quicker by hand.

typedef __SIZE_TYPE__ size_t;
extern unsigned char __heap_base;
static size_t next;

// An instance is used once, so nothing is ever given back.
__attribute__((export_name("cabi_realloc"))) void *cabi_realloc(void *old, size_t old_size, size_t align, size_t size) {
    (void)old, (void)old_size;
    if (!next) next = (size_t)&__heap_base;
    size_t at = (next + align - 1) & ~(align - 1);
    next = at + size;
    size_t pages = (next + 65535) / 65536, have = __builtin_wasm_memory_size(0);
    if (pages > have && __builtin_wasm_memory_grow(0, pages - have) == (size_t)-1) __builtin_trap();
    return (void *)at;
}

// result<string, string>: which of the two, then where the text is and how long.
struct result {
    unsigned char is_error;
    const char *text;
    size_t length;
};

static char *number(char *end, size_t n) {
    do *--end = '0' + n % 10;
    while (n /= 10);
    return end;
}

__attribute__((export_name("run"))) struct result *run(const char *input, size_t length) {
    static struct result result;
    static char out[128];
    if (length == 0) {
        result = (struct result){1, "there is nothing to count\n", 26};
        return &result;
    }
    size_t lines = 0, words = 0, in_word = 0;
    for (size_t i = 0; i < length; i++) {
        int space = input[i] == ' ' || (input[i] >= '\t' && input[i] <= '\r');
        lines += input[i] == '\n';
        words += !space && !in_word;
        in_word = !space;
    }
    char *at = out + sizeof out;
    *--at = '\n';
    at = number(at, length), *--at = ' ';
    at = number(at, words), *--at = ' ';
    at = number(at, lines);
    result = (struct result){0, at, (size_t)(out + sizeof out - at)};
    return &result;
}
