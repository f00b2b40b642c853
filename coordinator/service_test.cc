#include "coordinator/service.h"
#include "gtest/gtest.h"
