package vectorserver

import (
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/health"
	"github.com/millrace/millrace/gpuworker/vectors"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// listAge is the age at which a list of files is read again.
const listAge = 2 * time.Second

// codebookList caches the codebooks and their files. Health streams read it many times a second,
// and a slow disk must not silence them.
type codebookList struct {
	mu      sync.Mutex
	read    time.Time // end of the last reading
	reading bool      // whether a reading is under way
	files   []vectors.Status
}

// get returns the list as last read. If it is old, get starts a reading that calls done at its end.
func (l *codebookList) get(list func() []vectors.Status, done func()) []vectors.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.reading && time.Since(l.read) >= listAge {
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

// age makes the list old, because its files have changed.
func (l *codebookList) age() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.read = time.Time{}
}

// Assess implements server.Extension.
func (s *Server) Assess(in *health.Input) { in.Codebooks = s.manager.Loaded() }

// Report implements server.Extension.
func (s *Server) Report(r *pb.WorkerReport) (running int) {
	r.Vectors = s.status()
	return int(r.GetVectors().GetTrainings())
}

// Same implements server.Extension.
func (s *Server) Same(a, b *pb.WorkerReport) (steady, whole bool) {
	return proto.Equal(withoutAges(a.GetVectors()), withoutAges(b.GetVectors())), proto.Equal(a.GetVectors(), b.GetVectors())
}

// Delta implements server.Extension.
func (s *Server) Delta(d *pb.WorkerDelta, r *pb.WorkerReport) { d.Vectors = r.GetVectors() }

// status returns the report's part about codebooks and trainings; nil if the device supports none.
// Loaded codebooks are reported as they are now, files as they were read last.
func (s *Server) status() *pb.VectorStatus {
	if !s.manager.Supported() {
		return nil
	}
	st := s.manager.Stats()
	out := &pb.VectorStatus{
		Trainings: uint32(st.Trainings), MaxTrainings: uint32(st.MaxTrainings), TrainingDeviceBytes: st.TrainingBytes,
		TrainingSpoolBytes: st.SpoolBytes, FreeSpoolBytes: st.FreeSpool,
	}
	for _, b := range vectors.Merge(s.files.get(s.manager.Files, s.worker.Nudge), s.manager.Loaded()) {
		out.Codebooks = append(out.Codebooks, codebookInfo(b))
	}
	return out
}

// withoutAges returns a copy without the fields that change all the time.
func withoutAges(v *pb.VectorStatus) *pb.VectorStatus {
	v = proto.CloneOf(v)
	for _, b := range v.GetCodebooks() {
		b.VerifiedAge = nil
	}
	return v
}
