# The progress of a build: go build -v prints the path of each package that it compiles. This shows their number, on a terminal in one
# line, elsewhere every fiftieth. Other lines are messages of the compilers and pass unchanged.
# Usage: go build -v ... 2>&1 | awk -v terminal=1 -f progress.awk

/^[^ #:()]+$/ {
  n++
  if (terminal) printf "\r  %d packages compiled", n
  else if (n % 50 == 0) printf "  %d packages compiled\n", n
  shown = terminal
  fflush()
  next
}

{
  if (shown) print ""
  shown = 0
  print
  fflush()
}

END {
  if (shown) print ""
  else if (!terminal && n % 50) printf "  %d packages compiled\n", n
}
