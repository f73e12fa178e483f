//go:build msk

package sink

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/segmentio/kafka-go/sasl"
)

// The token that a broker is sent is signed for its host with the credentials of the
// SDK's chain, and holds no secret.
func TestMSKIAMSignsForTheBroker(t *testing.T) {
	const secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	t.Setenv("AWS_REGION", "eu-central-1")
	cfg := &SASLConfig{Mechanism: "aws-msk-iam"}
	if err := cfg.check(); err != nil {
		t.Fatal(err)
	}
	ctx := sasl.WithMetadata(context.Background(), &sasl.Metadata{Host: "b-1.msk.test"})
	m, err := newCredentials(cfg, nil).mechanism(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, first, err := m.Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var token map[string]string
	if err := json.Unmarshal(first, &token); err != nil {
		t.Fatal(err)
	}
	if m.Name() != "AWS_MSK_IAM" || token["host"] != "b-1.msk.test" || token["x-amz-signature"] == "" {
		t.Errorf("%s %v", m.Name(), token)
	}
	for name, value := range token {
		if value == secret {
			t.Errorf("%s is the secret", name)
		}
	}
}
