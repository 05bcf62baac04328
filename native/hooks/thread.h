/* A thread of the library's own, in programs that use the feature that needs it. The C library's pthread_create is found
 * at run time: before glibc 2.34 it lies in a library that a program need not have, but every CUDA driver brings.
 * Uses no hook. Tests: tests/integration/test_native_share.py. */
#ifndef VC_HOOKS_THREAD_H
#define VC_HOOKS_THREAD_H

/* Runs BODY in a thread named NAME that receives no signals, and calls AT_EXIT when the program ends by exit(), before
 * what was registered earlier. 0: there is no thread. */
int thread_start(void *(*body)(void *), const char *name, void (*at_exit)(void *));

#endif
