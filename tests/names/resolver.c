/* Names that end in .test are looked up in the file that PGWEIR_TEST_HOSTS names, each time anew: lines "name address",
 * several for several addresses in that order, or "name slow" for a lookup that takes three seconds and finds nothing.
 * Everything else goes to the C library. Preloaded into pgweir by names.rs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*lookup)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

static int from_file(lookup real, const char *file, const char *node, const char *service,
                     const struct addrinfo *hints, struct addrinfo **found)
{
    char name[256], address[256];
    struct addrinfo **end = found;
    FILE *hosts = fopen(file, "r");

    *found = NULL;
    while (hosts && fscanf(hosts, "%255s %255s", name, address) == 2) {
        if (strcmp(name, node) != 0)
            continue;
        if (strcmp(address, "slow") == 0) {
            sleep(3);
            continue;
        }
        if (real(address, service, hints, end) != 0)
            continue;
        while (*end)
            end = &(*end)->ai_next;
    }
    if (hosts)
        fclose(hosts);
    return *found ? 0 : EAI_NONAME;
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    lookup real = (lookup)dlsym(RTLD_NEXT, "getaddrinfo");
    const char *file = getenv("PGWEIR_TEST_HOSTS");
    size_t length = node ? strlen(node) : 0;

    if (file && length > 5 && strcmp(node + length - 5, ".test") == 0)
        return from_file(real, file, node, service, hints, found);
    return real(node, service, hints, found);
}
