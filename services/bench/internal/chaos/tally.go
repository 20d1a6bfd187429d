package chaos

import (
	"bytes"
	"encoding/json"
	"sync"
)

// tally adds up what schedulers say of themselves: how often their streams went on behind a token, by the lines that they log
// of finished calls. Safe for concurrent use.
type tally struct {
	mu      sync.Mutex
	resumes uint64 // guarded by mu
}

func (t *tally) count() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.resumes
}

// log reads the log of one run of a program.
func (t *tally) log() *lines { return &lines{to: t} }

// lines cuts what is written into lines. For one goroutine.
type lines struct {
	to   *tally
	rest []byte // of a line without an end
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
		if json.Unmarshal(line, &call) == nil && call.Resumes > 0 { // what is no JSON is no line of a call
			l.to.mu.Lock()
			l.to.resumes += call.Resumes
			l.to.mu.Unlock()
		}
	}
}
