package template

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// serve is the main loop of the child: it reads requests from in and writes replies to out, until
// in ends. It returns the exit status.
func serve(in io.Reader, out io.Writer) int {
	debug.SetMaxStack(64 << 20)
	dec, enc := json.NewDecoder(bufio.NewReader(in)), json.NewEncoder(out)
	var (
		page  *page
		guard watchdog
	)
	for {
		var req request
		if err := dec.Decode(&req); err != nil {
			return 0 // the parent has ended or is done
		}
		var rep reply
		switch {
		case req.Parse != nil:
			guard.start(req.Parse.Limits)
			guard.begin()
			page, rep = parsePage(req.Parse.Source, req.Parse.Limits)
		case req.Render != nil && page != nil:
			guard.begin()
			rep = page.render(req.Render)
		default:
			rep = reply{Text: "nothing is parsed", Fault: faultTemplate}
		}
		guard.end()
		if err := enc.Encode(rep); err != nil {
			return 1
		}
	}
}

// watchdog ends the process if a request uses too much time or memory. The kernel's limit stops
// single large allocations; the watchdog also works if the kernel does not enforce it.
type watchdog struct {
	deadline atomic.Int64 // Unix nanoseconds, 0 while idle
	timeout  time.Duration
}

func (w *watchdog) start(limits Options) {
	w.timeout = limits.Timeout
	limitMemory(limits.MaxMemory)
	debug.SetMemoryLimit(limits.MaxMemory / 2)
	go func() {
		heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
		for {
			time.Sleep(3 * time.Millisecond)
			deadline := w.deadline.Load()
			if deadline == 0 {
				continue
			}
			if time.Now().UnixNano() > deadline {
				os.Exit(exitTime)
			}
			metrics.Read(heap)
			if int64(heap[0].Value.Uint64()+heap[1].Value.Uint64()) > limits.MaxMemory {
				os.Exit(exitMemory)
			}
		}
	}()
}

func (w *watchdog) begin() { w.deadline.Store(time.Now().Add(w.timeout).UnixNano()) }
func (w *watchdog) end()   { w.deadline.Store(0) }

// limitMemory lets this process allocate this many more bytes.
func limitMemory(more int64) {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return // if it fails, the watchdog still works
	}
	var have int64
	for line := range linesOf(raw) {
		if n, _ := fmt.Sscanf(line, "VmData: %d kB", &have); n == 1 {
			setDataLimit(have<<10 + more)
			return
		}
	}
}

// setDataLimit limits private writable memory, which includes the heap. A limit on address space
// would not work, because the Go runtime reserves far more than it uses.
func setDataLimit(bytes int64) {
	_ = unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: uint64(bytes), Max: uint64(bytes)}) // if it fails, the watchdog still works
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 16, Max: 16})
}

func linesOf(raw []byte) iter.Seq[string] { return strings.Lines(string(raw)) }
