#include "coordinator/run_directory.h"
#include "gtest/gtest.h"
