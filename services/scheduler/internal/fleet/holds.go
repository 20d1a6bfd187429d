package fleet

import pb "github.com/millrace/millrace/proto/gen/millrace/v1"

// Model is the status of a model on the member, in any state, or nil.
func (m *Member) Model(name string) *pb.ModelStatus {
	for _, model := range m.Report.GetModels() {
		if model.GetName() == name {
			return model
		}
	}
	return nil
}

// File is a model file on the member, or nil.
func (m *Member) File(name string) *pb.ModelFile {
	for _, file := range m.Report.GetFiles() {
		if file.GetName() == name {
			return file
		}
	}
	return nil
}
