package filewatch

import (
	"sync"
	"sync/atomic"
	"time"
)

// Every is the minimum time between two readings.
const Every = time.Second

// maxAge bounds the age of a value that Current returns while another caller reads the files.
// Otherwise a key that was removed hours ago would be valid once more for a caller that arrives
// together with the first caller since then.
const maxAge = 5 * time.Second

// Config describes the files. C holds their bytes: equal values mean the same T.
type Config[C comparable, T any] struct {
	// Read reads the bytes, and Parse parses them. Their errors must name the file.
	Read  func() (C, error)
	Parse func(C) (T, error)
	// Changed is called when the bytes have changed, with the new value. Failed is called when the
	// files are unusable, once for each different error.
	Changed func(T)
	Failed  func(error)
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Source holds the value of the files. It is safe for concurrent use.
type Source[C comparable, T any] struct {
	cfg  Config[C, T]
	last atomic.Pointer[reading[T]]

	mu      sync.Mutex // held while files are read
	read    C          // guarded by mu; the last bytes that were used
	failure string     // guarded by mu; the error of the last reading, or ""
}

// reading is the value of the last usable reading, with the time of the last attempt.
type reading[T any] struct {
	value T
	time  time.Time
}

// New reads the files for the first time. It returns the error of Read or Parse.
func New[C comparable, T any](cfg Config[C, T]) (*Source[C, T], error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Source[C, T]{cfg: cfg}
	var err error
	if s.read, err = cfg.Read(); err != nil {
		return nil, err
	}
	value, err := cfg.Parse(s.read)
	if err != nil {
		return nil, err
	}
	s.last.Store(&reading[T]{value, cfg.Now()})
	return s, nil
}

// Current returns the value of the files now, or of the last usable ones. While one caller reads
// them, which takes as long as the disk does, the others get the previous value.
func (s *Source[C, T]) Current() T {
	if !s.mu.TryLock() {
		if last := s.last.Load(); s.cfg.Now().Sub(last.time) < maxAge {
			return last.value
		}
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	if last, now := s.last.Load(), s.cfg.Now(); now.Sub(last.time) >= Every {
		s.last.Store(&reading[T]{s.reloadLocked(last.value), now})
	}
	return s.last.Load().value
}

// reloadLocked reads the files again. It returns before if they are unchanged or unusable.
func (s *Source[C, T]) reloadLocked(before T) T {
	read, err := s.cfg.Read()
	if err == nil && read == s.read {
		s.failure = ""
		return before
	}
	value := before
	if err == nil {
		value, err = s.cfg.Parse(read)
	}
	if err != nil {
		if s.failure != err.Error() {
			s.cfg.Failed(err)
		}
		s.failure = err.Error()
		return before
	}
	s.read, s.failure = read, ""
	s.cfg.Changed(value)
	return value
}
