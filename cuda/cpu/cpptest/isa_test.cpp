// The instruction-set paths that a process is offered, and that amx is not where the system refuses it tiles.
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../amx.h"
#include "../isa.h"

using namespace mr;
using namespace mr::cpu;

namespace {

// Linux refuses tiles to a process with a stack for signals that cannot hold their state.
bool with_a_small_signal_stack() {
  static char stack[6 << 10];
  stack_t small = {};
  small.ss_sp = stack;
  small.ss_size = sizeof stack;
  return sigaltstack(&small, nullptr) == 0;
}

int run_in_a_process(int (*body)()) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 2;
  return WEXITSTATUS(status);
}

int refused() {
  if (!with_a_small_signal_stack()) return 2;
  if (runnable(Isa::amx)) { fprintf(stderr, "amx is offered to a process that was refused tiles\n"); return 1; }
  if (detect() == Isa::amx) { fprintf(stderr, "amx was chosen though the process was refused tiles\n"); return 1; }
  return runnable(detect()) ? 0 : 1;
}

int asked_twice() { return runnable(Isa::amx) && runnable(Isa::amx) && detect() == Isa::amx ? 0 : 1; }

}  // namespace

int main() {
  const int without = run_in_a_process(refused);
  if (without == 1) return 1;
  if (without != 0) printf("this system takes no small stack for signals: a refusal cannot be shown\n");
#if MR_AMX
  if (!runnable(Isa::amx)) {
    printf("amx: this processor or this system has no such path\n");
    return 0;
  }
  if (run_in_a_process(asked_twice) != 0) { fprintf(stderr, "amx is runnable but not the best path\n"); return 1; }
#else
  printf("amx: this build's compiler does not know it\n");
  if (runnable(Isa::amx)) { fprintf(stderr, "amx is offered though it was not built\n"); return 1; }
#endif
  return 0;
}
