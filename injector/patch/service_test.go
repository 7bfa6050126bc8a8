package patch

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestServiceEnv(t *testing.T) {
	owned := func(kind, name string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: "Nobody", Name: "x"}, {Kind: kind, Name: name, Controller: new(true)}}
	}
	type meta = metav1.ObjectMeta
	for _, tt := range []struct {
		meta meta
		want string
	}{
		{meta{}, "[]"},
		{meta{Name: "orders-0"}, "[]"},
		{meta{Labels: map[string]string{"app": "orders"}, OwnerReferences: owned("StatefulSet", "db")}, "[HEDDLE_SERVICE_NAME=orders]"},
		{meta{Labels: map[string]string{"app": "a", "app.kubernetes.io/name": "b", "app.kubernetes.io/version": "1.2"}},
			"[HEDDLE_SERVICE_NAME=b HEDDLE_SERVICE_VERSION=1.2]"},
		{meta{Annotations: map[string]string{"resource.opentelemetry.io/service.name": "c"}, Labels: map[string]string{"app": "a"}},
			"[HEDDLE_SERVICE_NAME=c]"},
		{meta{Annotations: map[string]string{"resource.opentelemetry.io/service.name": "$(POD_UID)"}, Labels: map[string]string{"app": "a"}},
			"[HEDDLE_SERVICE_NAME=a]"},
		{meta{Labels: map[string]string{"pod-template-hash": "7d9f8b6c5"}, OwnerReferences: owned("ReplicaSet", "orders-7d9f8b6c5")},
			"[HEDDLE_SERVICE_NAME=orders]"},
		{meta{OwnerReferences: owned("StatefulSet", "db")}, "[HEDDLE_SERVICE_NAME=db]"},
		{meta{OwnerReferences: owned("Job", "backup-29012345")}, "[]"},
	} {
		var got []string
		for _, e := range serviceEnv(&corev1.Pod{ObjectMeta: tt.meta}) {
			got = append(got, e.Name+"="+e.Value)
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("%v gives %v, want %v", tt.meta, got, tt.want)
		}
	}
}
