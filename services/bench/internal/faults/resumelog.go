package faults

import (
	"bytes"
	"encoding/json"
	"sync"
)

// resumeLog counts the resumes that schedulers log with their finished calls. It is safe for
// concurrent use.
type resumeLog struct {
	mu    sync.Mutex
	total uint64 // guarded by mu
}

func (l *resumeLog) count() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// writer returns a writer for the log of one run of a program; it is for one goroutine.
func (l *resumeLog) writer() *lines { return &lines{to: l} }

// lines cuts a log into lines.
type lines struct {
	to   *resumeLog
	rest []byte // a line without its end
}

// Write never fails.
func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		l.rest = rest
		var call struct {
			Resumes uint64 `json:"resumes"`
		}
		if json.Unmarshal(line, &call) == nil { // other lines are not JSON
			l.to.mu.Lock()
			l.to.total += call.Resumes
			l.to.mu.Unlock()
		}
	}
}
