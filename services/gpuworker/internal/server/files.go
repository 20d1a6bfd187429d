package server

import (
	"sync"
	"time"

	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// fileList remembers the model files for a while: they are asked for many times a second and change rarely.
type fileList struct {
	mu      sync.Mutex
	known   bool      // whether they were read once
	read    time.Time // end of the last reading
	reading bool      // whether one is under way
	files   []*pb.ModelFile
}

const fileListAge = 2 * time.Second

// get is the list as last read, and whether it was read once. It never waits: an aged list is read anew beside its callers,
// who are told by done, as a slow disk must not silence the health streams: schedulers would give the worker up.
func (l *fileList) get(list func() []model.Entry, done func()) (files []*pb.ModelFile, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.reading && (!l.known || time.Since(l.read) >= fileListAge) {
		l.reading = true
		go func() {
			files := modelFiles(list())
			l.mu.Lock()
			l.files, l.read, l.reading, l.known = files, time.Now(), false, true
			l.mu.Unlock()
			done()
		}()
	}
	return l.files, l.known
}

func modelFiles(entries []model.Entry) []*pb.ModelFile {
	files := make([]*pb.ModelFile, 0, len(entries))
	for _, f := range entries {
		out := &pb.ModelFile{Name: f.Name, FileBytes: f.Bytes}
		if f.Problem != nil {
			out.Problem = f.Problem.Error()
		} else {
			out.NeededBytes, out.Capabilities = f.WeightBytes, capabilitiesOf(f.Facts)
		}
		files = append(files, out)
	}
	return files
}
