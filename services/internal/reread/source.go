package reread

import (
	"sync"
	"sync/atomic"
	"time"
)

// Every is how often files are looked at while somebody asks for what they hold.
const Every = time.Second

// patience is how old what the files held may be for those who find another reading them: else a key that was taken out hours ago
// would be good once more for who calls beside the first caller since then.
const patience = 5 * time.Second

// Config says what files hold. C are their bytes, of which equal ones hold the same T.
type Config[C comparable, T any] struct {
	// Read reads the bytes, and Parse makes of them what they hold. Their errors name the file.
	Read  func() (C, error)
	Parse func(C) (T, error)
	// Changed is told that other bytes were read and what they hold; Failed that files cannot be used, once as long as the error
	// is the same.
	Changed func(T)
	Failed  func(error)
	// Now is the clock; nil: the system's.
	Now func() time.Time
}

// Source is what files hold. Safe for concurrent use.
type Source[C comparable, T any] struct {
	cfg  Config[C, T]
	last atomic.Pointer[reading[T]]

	mu      sync.Mutex // held while files are read
	read    C          // guarded by mu; what last came of them
	failure string     // guarded by mu; why the last reading could not be used, "" if it could
}

// reading is what the files held when they were last read, or before that when they could last be used.
type reading[T any] struct {
	made T
	at   time.Time
}

// New reads the files for the first time; its error is that of Read or Parse.
func New[C comparable, T any](cfg Config[C, T]) (*Source[C, T], error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Source[C, T]{cfg: cfg}
	var err error
	if s.read, err = cfg.Read(); err != nil {
		return nil, err
	}
	made, err := cfg.Parse(s.read)
	if err != nil {
		return nil, err
	}
	s.last.Store(&reading[T]{made, cfg.Now()})
	return s, nil
}

// Current is what the files hold at this moment, or what they held when they could last be used. While one caller reads them, which
// takes as long as a disk and the files do, the others get what was there a moment before.
func (s *Source[C, T]) Current() T {
	if !s.mu.TryLock() {
		if last := s.last.Load(); s.cfg.Now().Sub(last.at) < patience {
			return last.made
		}
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	if last, now := s.last.Load(), s.cfg.Now(); now.Sub(last.at) >= Every {
		s.last.Store(&reading[T]{s.againLocked(last.made), now})
	}
	return s.last.Load().made
}

// againLocked reads the files again; what cannot be used leaves what was made before.
func (s *Source[C, T]) againLocked(before T) T {
	read, err := s.cfg.Read()
	if err == nil && read == s.read {
		s.failure = ""
		return before
	}
	made := before
	if err == nil {
		made, err = s.cfg.Parse(read)
	}
	if err != nil {
		if s.failure != err.Error() {
			s.cfg.Failed(err)
		}
		s.failure = err.Error()
		return before
	}
	s.read, s.failure = read, ""
	s.cfg.Changed(made)
	return made
}
