package server

import (
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/vectors"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// bookList remembers the codebooks, files among them, for a while, as fileList does the model files.
type bookList struct {
	mu      sync.Mutex
	read    time.Time // end of the last reading
	reading bool      // whether one is under way
	files   []vectors.Status
}

// get is the list as last read, and reads it anew beside its callers when it is old.
func (l *bookList) get(list func() []vectors.Status, done func()) []vectors.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.reading && time.Since(l.read) >= fileListAge {
		l.reading = true
		go func() {
			files := list()
			l.mu.Lock()
			l.files, l.read, l.reading = files, time.Now(), false
			l.mu.Unlock()
			done()
		}()
	}
	return l.files
}

// age makes the list old: its files have changed.
func (l *bookList) age() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.read = time.Time{}
}

// vectorStatus is what the worker tells of codebooks and trainings; nil where its device has none. What is loaded is told as it is now,
// files as they were read last.
func (s *Server) vectorStatus() *pb.VectorStatus {
	if !s.vectors.Supported() {
		return nil
	}
	st := s.vectors.Stats()
	out := &pb.VectorStatus{
		Trainings: uint32(st.Trainings), MaxTrainings: uint32(st.MaxTrainings), TrainingDeviceBytes: st.TrainingBytes,
		TrainingSpoolBytes: st.SpoolBytes, FreeSpoolBytes: st.FreeSpool,
	}
	for _, b := range vectors.Merge(s.books.get(s.vectors.Files, s.nudge), s.vectors.Loaded()) {
		out.Codebooks = append(out.Codebooks, codebookInfo(b))
	}
	return out
}

// steadyVectors are codebooks and trainings without ages.
func steadyVectors(v *pb.VectorStatus) *pb.VectorStatus {
	v = proto.CloneOf(v)
	for _, b := range v.GetCodebooks() {
		b.VerifiedAge = nil
	}
	return v
}
