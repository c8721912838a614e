#include "../c/cpu_fixture.h"
