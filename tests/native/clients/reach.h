/* SPDX-License-Identifier: Apache-2.0 */
/* The ways in which programs reach the driver. Built twice: linked with libcuda, and free of it.
 *   linked     the exported symbol, through the PLT
 *   dlsym      a handle of libcuda.so.1 and dlsym
 *   default    libcuda.so.1 made global, then dlsym(RTLD_DEFAULT)
 *   libc       dlsym taken out of libc's own handle by name
 *   dlvsym     dlvsym taken out of libc's own handle, for dlsym at its oldest version
 *   proc1      the four-argument cuGetProcAddress
 *   proc2      cuGetProcAddress_v2, as the CUDA runtime does it, with no status pointer */
#ifndef TESTS_NATIVE_CLIENTS_REACH_H
#define TESTS_NATIVE_CLIENTS_REACH_H

#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#define REACH_DEFAULT "dlsym"

void reach_start(const char *mode);
void *reach(const char *symbol);

#endif
