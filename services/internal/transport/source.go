package transport

import (
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// checkEvery is how often the files are looked at while connections are made.
const checkEvery = time.Second

// source is the material of files, read again when they change.
type source struct {
	files  files
	now    func() time.Time
	logger hclog.Logger

	mu      sync.Mutex
	checked time.Time // guarded by mu; when the files were last read
	read    contents  // guarded by mu; what last came of them
	made    material  // guarded by mu
	failure string    // guarded by mu; why the last reading could not be used, "" if it could
}

// newSource reads the files for the first time.
func newSource(f files, logger hclog.Logger) (*source, error) {
	s := &source{files: f, now: time.Now, logger: logger.Named("tls")}
	read, made, err := f.load()
	if err != nil {
		return nil, err
	}
	s.read, s.made, s.checked = read, made, s.now()
	s.warnOfDates()
	return s, nil
}

// current is the material for a connection that is made at this moment. Files that cannot be used, as when only one of a pair
// has been replaced, leave what was there before.
func (s *source) current() material {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.now(); now.Sub(s.checked) >= checkEvery {
		s.checked = now
		s.refreshLocked()
	}
	return s.made
}

// refreshLocked reads the files again.
func (s *source) refreshLocked() {
	read, err := s.files.read()
	if err == nil && read == s.read {
		s.failure = ""
		return
	}
	var made material
	if err == nil {
		made, err = s.files.parse(read)
	}
	if err != nil {
		if s.failure != err.Error() {
			s.logger.Error("certificate files cannot be used, those read before stay", "error", err)
		}
		s.failure = err.Error()
		return
	}
	s.read, s.made, s.failure = read, made, ""
	fields := []any{"authorities", s.files.ca}
	if made.certificate != nil {
		leaf := made.certificate.Leaf
		fields = append(fields, "certificate", s.files.cert, "names", namesOf(leaf), "not_after", leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	s.logger.Info("certificate files read again", fields...)
	s.warnOfDates()
}

// warnOfDates warns of a certificate that nobody will accept.
func (s *source) warnOfDates() {
	if s.made.certificate == nil {
		return
	}
	leaf := s.made.certificate.Leaf
	if now := s.now(); now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		s.logger.Warn("certificate is not valid at this time, nobody will accept it", "certificate", s.files.cert,
			"not_before", leaf.NotBefore.UTC().Format(time.RFC3339), "not_after", leaf.NotAfter.UTC().Format(time.RFC3339))
	}
}
