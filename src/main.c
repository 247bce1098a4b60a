#include "sherd_config.h"

#include <stdio.h>

int main(void)
{
    puts("sherd " PACKAGE_VERSION);
    return 0;
}
